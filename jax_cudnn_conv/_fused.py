"""A forward convolution with bias and activation as one primitive, which cuDNN runs as one kernel.

``y = activation(conv(x, w) + bias)`` is not bilinear, so it has rules of its own; each leads back to the
three primitives. With T the bilinear convolution and s the activation, its derivative is

    dy = s'(T(x, w) + b) * (T(dx, w) + T(x, dw) + db),    and for relu  s' = [y > 0].

Where a library does not fuse it, it is lowered to the convolution, an addition and a maximum.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, batching, xla

from jax_cudnn_conv import _compat
from jax_cudnn_conv._primitives import FWD, abstract_eval, bind, fold, unfold
from jax_cudnn_conv._spec import ConvSpec

conv_fused_p = _compat.Primitive("conv_fused")


def conv(x: Any, w: Any, bias: Any = None, *, relu: bool, **params: Any) -> jax.Array:
    """Convolve, add a bias of one entry per output feature unless it is None, and apply relu if asked to."""
    operands = (x, w) if bias is None else (x, w, bias)
    if len(operands) == 2 and not relu:
        return bind(FWD, x, w, **params)
    if not jnp.issubdtype(params["out_dtype"], jnp.floating):  # never fused
        return unfused(*operands, relu=relu, **params)
    return conv_fused_p.bind(*_compat.cast_to_common_varying_axes(*operands), relu=relu, **params)


def add_bias(y: Any, bias: Any, channels: int) -> jax.Array:
    """Add one entry per feature, which are on axis ``channels``."""
    return y + jnp.expand_dims(bias, [axis for axis in range(y.ndim) if axis != channels])


def unfused(x, w, *bias, relu, spec: ConvSpec, **params):
    """The same of separate operations."""
    y = bind(FWD, x, w, spec=spec, **params)
    if bias:
        y = add_bias(y, bias[0], spec.y_dims[1])
    return jax.nn.relu(y) if relu else y


def _abstract_eval(x, w, *_, relu, **params):
    return abstract_eval(FWD, x, w, **params)


def _jvp(primals, tangents, *, relu, spec, **params):
    y = conv_fused_p.bind(*primals, relu=relu, spec=spec, **params)
    (x, w, *_), (dx, dw, *db) = primals, tangents
    terms = []
    if type(dx) is not ad.Zero:
        terms.append(bind(FWD, dx, w, spec=spec, **params))
    if type(dw) is not ad.Zero:
        terms.append(bind(FWD, x, dw, spec=spec, **params))
    dy = functools.reduce(jnp.add, terms) if terms else jnp.zeros_like(y)
    if db and type(db[0]) is not ad.Zero:
        dy = add_bias(dy, db[0], spec.y_dims[1])
    return y, jnp.where(y > 0, dy, jnp.zeros_like(dy)) if relu else dy


def _batch(operands, mapped, *, relu, spec, **params):
    x, *others = operands
    if all(m is None for m in mapped[1:]) and x.shape[mapped[0]]:
        axis = spec.x_dims[0]
        y = conv_fused_p.bind(fold(x, mapped[0], axis, 1), *others, relu=relu, spec=spec, **params)
        return unfold(y, x.shape[mapped[0]], spec.y_dims[0], 1)
    separate = functools.partial(unfused, relu=relu, spec=spec, **params)
    return jax.vmap(separate, in_axes=tuple(mapped))(*operands), 0


conv_fused_p.def_impl(functools.partial(xla.apply_primitive, conv_fused_p))
conv_fused_p.def_abstract_eval(_abstract_eval)
ad.primitive_jvps[conv_fused_p] = _jvp
batching.primitive_batchers[conv_fused_p] = _batch
