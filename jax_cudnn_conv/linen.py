"""Layers for `flax.linen`: its ``Conv`` and ``ConvTranspose`` on this library, and what the latter lacks.

``import jax_cudnn_conv as jcc`` and ``jcc.linen.Conv`` are enough; flax is imported at first use only.
Parameters have Flax's names and shapes, so that checkpoints load.
"""

from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen import dtypes
from jax.nn import initializers

from jax_cudnn_conv import _layers, lax
from jax_cudnn_conv._arguments import PaddingLike

__all__ = ["Conv", "ConvTranspose"]


def _convolution() -> Callable[..., jax.Array]:
    return lax.conv_general_dilated


class Conv(nn.Conv):
    """`flax.linen.Conv` on this library's kernels: the same arguments, parameters and values.

    The attributes are those of `flax.linen.Conv`, ``conv_general_dilated_cls`` aside, which has
    :func:`jax_cudnn_conv.lax.conv_general_dilated` called.

    Raises:
      ValueError, TypeError: those of `flax.linen.Conv`.

    Example:
      >>> import jax, jax.numpy as jnp, jax_cudnn_conv as jcc
      >>> layer = jcc.linen.Conv(64, (3, 3), strides=2, feature_group_count=4)
      >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((8, 32, 32, 16)))
      >>> y.shape, variables["params"]["kernel"].shape
      ((8, 16, 16, 64), (3, 3, 4, 64))

    As in Flax, ``kernel_size=3`` is one spatial axis, whatever the input: (8, 32, 32, 16) then holds 8 x 32
    sequences.
    """

    conv_general_dilated_cls: Any = _convolution


class ConvTranspose(nn.Module):
    """`flax.linen.ConvTranspose` on this library's kernels, with groups and the choice of the output's size.

    With Flax's attributes it has Flax's parameters and values. The others, ``feature_group_count``,
    ``output_padding``, ``output_shape`` and ``use_consistent_padding``, what all of them mean, and the one
    exception: see :class:`jax_cudnn_conv.nnx.ConvTranspose`. Here the inputs' last axis says how many
    features come in.

    Example:
      >>> import jax, jax.numpy as jnp, jax_cudnn_conv as jcc
      >>> layer = jcc.linen.ConvTranspose(32, (3, 3), strides=2, padding=1, output_padding=1,
      ...     feature_group_count=4, transpose_kernel=True, use_consistent_padding=True)
      >>> y, variables = layer.init_with_output(jax.random.key(0), jnp.ones((1, 14, 14, 64)))
      >>> y.shape, variables["params"]["kernel"].shape
      ((1, 28, 28, 32), (3, 3, 8, 64))
    """

    features: int
    kernel_size: int | Sequence[int]
    strides: int | Sequence[int] | None = None
    padding: PaddingLike = "SAME"
    kernel_dilation: int | Sequence[int] | None = None
    use_bias: bool = True
    mask: Any = None
    dtype: Any = None
    param_dtype: Any = jnp.float32
    precision: Any = None
    kernel_init: _layers.Initializer | None = None
    bias_init: _layers.Initializer = initializers.zeros
    transpose_kernel: bool = False
    promote_dtype: Callable[..., Any] = dtypes.promote_dtype
    preferred_element_type: Any = None
    # Flax's end here.
    feature_group_count: int = 1
    output_padding: int | Sequence[int] | None = None
    output_shape: Sequence[int] | None = None
    use_consistent_padding: bool = False

    @nn.compact
    def __call__(self, inputs: jax.Array, *, output_shape: Sequence[int] | None = None) -> jax.Array:
        """Apply the layer to ``inputs`` of shape ``(*batch, *spatial, features)``.

        Any number of batch axes, none included. ``output_shape``, the spatial extents of the result, takes
        the place of the layer's ``output_shape`` and ``output_padding``.
        """
        taps, groups = _layers.kernel_size(self.kernel_size), self.feature_group_count
        shape = _layers.transposed_kernel_shape(
            taps, jnp.shape(inputs)[-1], self.features, groups, self.transpose_kernel
        )
        _layers.check_mask(self.mask, shape)
        kernel_init = self.kernel_init
        if kernel_init is None:
            kernel_init = _layers.transposed_kernel_init(groups, self.transpose_kernel)
        kernel = self.param("kernel", kernel_init, shape, self.param_dtype)
        if self.mask is not None:
            kernel *= self.mask
        bias = None
        if self.use_bias:
            bias = self.param("bias", self.bias_init, (self.features,), self.param_dtype)
        inputs, kernel, bias = self.promote_dtype(inputs, kernel, bias, dtype=self.dtype)
        return _layers.conv_transpose(self, inputs, kernel, bias, output_shape)
