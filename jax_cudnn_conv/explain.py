"""Which kernel runs each convolution of a function."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from jax_cudnn_conv import _devices, _native
from jax_cudnn_conv._fused import conv_fused_p
from jax_cudnn_conv._kernel import Kernel
from jax_cudnn_conv._lowering import choose, choose_fused
from jax_cudnn_conv._primitives import DIRECTIONS, FWD, Direction
from jax_cudnn_conv._spec import ConvSpec
from jax_cudnn_conv._targets import cudnn

_BY_PRIMITIVE = {d.primitive: d for d in DIRECTIONS} | {conv_fused_p: FWD}


@dataclasses.dataclass(frozen=True)
class Explanation:
    """One convolution. ``str()`` of it is a line for people.

    Attributes:
      direction: the primitive: ``"conv_fwd"``, ``"conv_dgrad"`` (the gradient by the input, or a transposed
        convolution) or ``"conv_wgrad"`` (the gradient by the kernel).
      problem: groups, batch, channels, extents and dtype, such as ``g1n8i1o16_28x28k3x3s2x2_float32``, and
        what the same kernel adds, such as ``_bias_relu``.
      kernel: what runs it: a tuple of ``backend`` (``"onednn"``, ``"cudnn"`` or ``"xla"``), ``name``,
        ``dtype`` (what it computes in), ``reason`` (why it is XLA where it is) and, for cuDNN,
        ``workspace`` (bytes) and ``notes``.
    """

    direction: str
    problem: str
    kernel: Kernel

    def __str__(self) -> str:
        return f"{self.direction:10} {self.problem:48} {self.kernel}"


def explain(fn: Callable, *args: Any, device: str | None = None, **kwargs: Any) -> list[Explanation]:
    """Say which kernel each convolution of ``fn(*args, **kwargs)`` runs on, without running it.

    Args:
      fn: a function that JAX can trace, such as a model, a loss or its gradient.
      *args: example arguments, arrays or `jax.ShapeDtypeStruct`.
      device: a GPU to answer for, whether this machine has one or not: ``"sm_75"`` (T4), ``"sm_80"`` (A100),
        ``"sm_89"`` (L4), ``"sm_90"`` (H200), ``"sm_100"`` (B200) or ``"sm_120"`` (RTX 5090). cuDNN, which
        must be installed, plans for a description of it. Default: the device that JAX uses.
      **kwargs: arguments of ``fn`` by name.

    Returns:
      One :class:`Explanation` for every convolution of this library in the traced program, in its order;
      one inside a loop counts once. `print(*explain(fn, x), sep="\\n")` makes a table.

    Raises:
      ValueError: ``device`` is not one of those above.
      RuntimeError: ``device`` is given, and cuDNN or what it needs to plan is missing; says what.

    Example:
      >>> import jax.numpy as jnp, jax_cudnn_conv as jcc
      >>> x, kernel = jnp.ones((1, 8, 8, 4)), jnp.ones((3, 3, 4, 8))
      >>> [e.direction for e in jcc.explain(jcc.conv, x, kernel)]
      ['conv_fwd']
    """
    if device is not None:
        module = cudnn()
        if module is None:
            raise RuntimeError(f"explain(device={device!r}) needs cuDNN: {_native.cudnn_error()}")
        _devices.described(device, module)
    jaxpr = jax.make_jaxpr(fn)(*args, **kwargs)
    return [_explain(eqn, device) for eqn in _convolutions(jaxpr.jaxpr)]


def _convolutions(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        if eqn.primitive in _BY_PRIMITIVE:
            yield eqn
        for leaf in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
            inner = getattr(leaf, "jaxpr", leaf)  # of a closed one
            if hasattr(inner, "eqns"):
                yield from _convolutions(inner)


def _explain(eqn: Any, device: str | None) -> Explanation:
    direction = _BY_PRIMITIVE[eqn.primitive]
    lhs, rhs, *bias = (v.aval for v in eqn.invars)
    platform = "cuda" if device else _devices.platform()
    params, kernel = dict(eqn.params), None
    problem = _problem(direction, params["spec"], lhs, rhs)
    if eqn.primitive is conv_fused_p:
        kernel = choose_fused(lhs, rhs, *bias, platform=platform, device=device, **params)
        relu = params.pop("relu")
        if kernel:
            problem += "_bias" * bool(bias) + "_relu" * relu
    if kernel is None:
        kernel = choose(direction, lhs, rhs, platform=platform, device=device, **params)
    return Explanation(direction.primitive.name, problem, kernel)


def _problem(direction: Direction, spec: ConvSpec, lhs: Any, rhs: Any) -> str:
    """The problem in the notation of oneDNN's benchdnn: groups, batch, channels and extents."""
    features = spec.features(direction.operands[0], lhs.shape)
    features |= spec.features(direction.operands[1], rhs.shape)

    def extents(values):
        return "x".join(map(str, values))

    text = f"g{spec.groups}n{features['n']}i{spec.groups * features['i']}o{spec.groups * features['o']}"
    text += f"_{extents(spec.x_spatial)}k{extents(spec.w_spatial)}s{extents(spec.strides)}"
    if any(d != 1 for d in spec.dilation):
        text += f"d{extents(spec.dilation)}"
    return f"{text}_{lhs.dtype}"
