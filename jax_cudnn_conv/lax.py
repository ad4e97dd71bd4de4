"""`jax.lax`'s convolutions on this library's primitives: the same signatures, meanings and errors.

``from jax_cudnn_conv import lax`` in the place of ``from jax import lax`` is all that code needs which calls
:func:`conv_general_dilated` or :func:`conv_transpose`. To reach the calls inside of other libraries see
:func:`jax_cudnn_conv.patch_jax`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax as _lax

from jax_cudnn_conv import _canonical, _compat, _process
from jax_cudnn_conv.options import current

__all__ = ["conv_general_dilated", "conv_transpose"]


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """`jax.lax.conv_general_dilated` on `conv_fwd`, `conv_dgrad` or `conv_wgrad`, whichever it is.

    Args:
      lhs: the input, ``(batch, features, *spatial)`` by default.
      rhs: the kernel, ``(out_features, features / feature_group_count, *kernel_spatial)`` by default.
      window_strides: the step of the kernel, an integer for each spatial axis.
      padding: ``"SAME"``, ``"SAME_LOWER"``, ``"VALID"``, or a ``(low, high)`` pair for each spatial axis.
      lhs_dilation: the distance between elements of lhs, zeros between them; None (default) is 1.
      rhs_dilation: the distance between kernel taps; None (default) is 1.
      dimension_numbers: None (channels first), three strings or a `jax.lax.ConvDimensionNumbers`.
      feature_group_count: the blocks of features that do not see each other (default 1).
      batch_group_count: the blocks of the batch, each convolved with its own block of output features
        (default 1).
      precision: None, a `jax.lax.Precision`, a pair of them, or a preset. Default: JAX's.
      preferred_element_type: the dtype of the result. Default: that of the operands.
      out_sharding: as in `jax.lax`; given, the convolution stays JAX's own.

    Returns:
      The result, ``(batch / batch_group_count, out_features, *spatial)`` by default.

    Raises:
      ValueError, TypeError: those of `jax.lax.conv_general_dilated`, which checks the arguments.

    Example:
      >>> import jax.numpy as jnp, jax_cudnn_conv as jcc
      >>> x, w = jnp.ones((1, 8, 14, 14)), jnp.ones((16, 8, 3, 3))
      >>> jcc.lax.conv_general_dilated(x, w, (1, 1), ((1, 2), (1, 2)), lhs_dilation=(2, 2)).shape
      (1, 16, 28, 28)
    """

    def function(lhs, rhs):
        return _lax.conv_general_dilated(
            lhs,
            rhs,
            window_strides,
            padding,
            lhs_dilation,
            rhs_dilation,
            dimension_numbers,
            feature_group_count,
            batch_group_count,
            precision,
            preferred_element_type,
            out_sharding,
        )

    return _compute(function, lhs, rhs)


def conv_transpose(
    lhs: Any,
    rhs: Any,
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    transpose_kernel: bool = False,
    precision: Any = None,
    preferred_element_type: Any = None,
    use_consistent_padding: bool = False,
) -> jax.Array:
    """`jax.lax.conv_transpose` on `conv_dgrad`: a convolution of lhs spread apart by the strides.

    Args:
      lhs: the input, ``(batch, *spatial, features)`` by default.
      rhs: the kernel, ``(*kernel_spatial, features, out_features)`` by default.
      strides: the distance between elements of lhs, an integer for each spatial axis.
      padding: ``"SAME"`` or ``"VALID"``, of the convolution that is transposed, or a ``(low, high)`` pair for
        each spatial axis, which pads the spread input.
      rhs_dilation: the distance between kernel taps; None (default) is 1.
      dimension_numbers: three strings or a `jax.lax.ConvDimensionNumbers`; None (default) is channels last.
      transpose_kernel: reverse the kernel and swap its two features (default False). That is the transpose
        of a convolution, and costs nothing here.
      precision, preferred_element_type: as in :func:`conv_general_dilated`.
      use_consistent_padding: numbers, too, are the padding of the convolution that is transposed (default
        False). For versions of JAX that have it.

    Returns:
      The result, ``(batch, *spatial, out_features)`` by default.

    Raises:
      ValueError, TypeError: those of `jax.lax.conv_transpose`, which checks the arguments.

    Example:
      >>> import jax.numpy as jnp, jax_cudnn_conv as jcc
      >>> x, w = jnp.ones((1, 14, 14, 8)), jnp.ones((3, 3, 8, 16))
      >>> jcc.lax.conv_transpose(x, w, (2, 2), "SAME").shape
      (1, 28, 28, 16)
    """
    newer = {"use_consistent_padding": True} if use_consistent_padding else {}

    def function(lhs, rhs, transpose_kernel=transpose_kernel):
        return _lax.conv_transpose(
            lhs,
            rhs,
            strides,
            padding,
            rhs_dilation,
            dimension_numbers,
            transpose_kernel,
            precision,
            preferred_element_type,
            **newer,
        )

    return _compute(function, lhs, rhs, bool(transpose_kernel))


def _compute(function: Callable, lhs: Any, rhs: Any, transpose_kernel: bool = False) -> jax.Array:
    """Call ``function``, whose one convolution JAX has checked and normalised, on a primitive."""
    _process.check_not_forked()
    closed = jax.make_jaxpr(function)(lhs, rhs)
    (convolution,) = (e for e in closed.jaxpr.eqns if e.primitive is _lax.conv_general_dilated_p)
    params, out = dict(convolution.params), convolution.outvars[0].aval
    if out.weak_type or _compat.has_explicit_mesh(out) or params.get("out_sharding") is not None:
        return function(lhs, rhs)
    if transpose_kernel:  # rather than of rhs, take the features of its axes
        n = params["dimension_numbers"]
        swapped = (n.rhs_spec[1], n.rhs_spec[0], *n.rhs_spec[2:])
        params["dimension_numbers"] = n._replace(rhs_spec=swapped)
    plan = _canonical.plan(lhs.shape, rhs.shape, out.shape, params, rhs_reversed=transpose_kernel)
    if plan is None:
        return function(lhs, rhs)
    return plan(lhs, rhs, out_dtype=out.dtype, precision=params["precision"], options=current())
