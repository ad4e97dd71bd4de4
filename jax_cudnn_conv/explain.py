"""Which kernel runs each convolution of a function."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax

from jax_cudnn_conv._lowering import Kernel, choose
from jax_cudnn_conv._primitives import DIRECTIONS, Direction
from jax_cudnn_conv._spec import ConvSpec

_BY_PRIMITIVE = {d.primitive: d for d in DIRECTIONS}


@dataclasses.dataclass(frozen=True)
class Explanation:
    """One convolution. ``str()`` of it is a line for people.

    Attributes:
      direction: the primitive: ``"conv_fwd"``, ``"conv_dgrad"`` (the gradient by the input, or a transposed
        convolution) or ``"conv_wgrad"`` (the gradient by the kernel).
      problem: groups, batch, channels, extents and dtype, such as ``g1n8i1o16_28x28k3x3s2x2_float32``.
      kernel: what runs it: a tuple of ``backend`` (``"onednn"`` or ``"xla"``), ``name``, ``dtype`` (what it
        computes in) and ``reason`` (why it is XLA where it is).
    """

    direction: str
    problem: str
    kernel: Kernel

    def __str__(self) -> str:
        return f"{self.direction:10} {self.problem:48} {self.kernel}"


def explain(fn: Callable, *args: Any, **kwargs: Any) -> list[Explanation]:
    """Say which kernel each convolution of ``fn(*args, **kwargs)`` runs on, without running it.

    Args:
      fn: a function that JAX can trace, such as a model, a loss or its gradient.
      *args: example arguments, arrays or `jax.ShapeDtypeStruct`.
      **kwargs: likewise, by name.

    Returns:
      One :class:`Explanation` for every convolution of this library in the traced program, in its order;
      one inside a loop counts once. `print(*explain(fn, x), sep="\\n")` makes a table.

    Example:
      >>> import jax.numpy as jnp, jax_cudnn_conv as jcc
      >>> x, kernel = jnp.ones((1, 8, 8, 4)), jnp.ones((3, 3, 4, 8))
      >>> [e.direction for e in jcc.explain(jcc.conv, x, kernel)]
      ['conv_fwd']
    """
    jaxpr = jax.make_jaxpr(fn)(*args, **kwargs)
    return [_explain(eqn) for eqn in _convolutions(jaxpr.jaxpr)]


def _convolutions(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        if eqn.primitive in _BY_PRIMITIVE:
            yield eqn
        for leaf in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
            inner = getattr(leaf, "jaxpr", leaf)  # of a closed one
            if hasattr(inner, "eqns"):
                yield from _convolutions(inner)


def _explain(eqn: Any) -> Explanation:
    direction = _BY_PRIMITIVE[eqn.primitive]
    lhs, rhs = (v.aval for v in eqn.invars)
    kernel = choose(direction, lhs, rhs, platform=jax.default_backend(), **eqn.params)
    problem = _problem(direction, eqn.params["spec"], lhs, rhs)
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
