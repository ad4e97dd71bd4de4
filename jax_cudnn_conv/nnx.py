"""Layers for `flax.nnx`: its ``Conv`` and ``ConvTranspose`` on this library, and what the latter lacks.

``import jax_cudnn_conv as jcc`` and ``jcc.nnx.Conv`` are enough; flax is imported at first use only.
Parameters have Flax's names and shapes, so that checkpoints load.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from jax.nn import initializers

from jax_cudnn_conv import _layers, lax
from jax_cudnn_conv._arguments import PaddingLike

__all__ = ["Conv", "ConvTranspose"]


class Conv(nnx.Conv):
    """`flax.nnx.Conv` on this library's kernels: the same arguments, parameters and values.

    Args:
      args, keywords: those of `flax.nnx.Conv`. ``conv_general_dilated`` is
        :func:`jax_cudnn_conv.lax.conv_general_dilated` by default.

    Raises:
      ValueError, TypeError: those of `flax.nnx.Conv`.

    Example:
      >>> import jax.numpy as jnp, jax_cudnn_conv as jcc
      >>> from flax import nnx
      >>> layer = jcc.nnx.Conv(16, 64, (3, 3), strides=2, feature_group_count=4, rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((8, 32, 32, 16))).shape
      (8, 16, 16, 64)

    As in Flax, ``kernel_size=3`` is one spatial axis, whatever the input: (8, 32, 32, 16) then holds 8 x 32
    sequences.
    """

    def __init__(
        self,
        *args: Any,
        conv_general_dilated: Callable[..., jax.Array] = lax.conv_general_dilated,
        **keywords: Any,
    ):
        super().__init__(*args, conv_general_dilated=conv_general_dilated, **keywords)


class ConvTranspose(nnx.Module):
    """`flax.nnx.ConvTranspose` on this library's kernels, with groups and the choice of the output's size.

    With Flax's arguments it has Flax's parameters and values (one exception: see ``padding``).

    Args:
      in_features, out_features: the features of the input and of the result.
      kernel_size: the kernel's spatial extents; an integer is one spatial axis.
      strides: the distance at which the input's elements are spread, an integer or one for each spatial
        axis. Default: 1.
      padding: ``"SAME"`` (default; ``L*stride`` elements), ``"VALID"`` (``L*stride +
        max(dilation*(K-1) + 1 - stride, 0)``), an integer, or an integer or a ``(low, high)`` pair for each
        spatial axis, see ``use_consistent_padding``; or ``"CIRCULAR"``, ``"REFLECT"`` or ``"CAUSAL"`` (one
        spatial axis; all three ``L*stride``), the transpose of the `Conv` that pads so. For CIRCULAR
        ``transpose_kernel`` has to be True to be that. Flax 0.12 gives a shift of it where the stride is
        above 2, or is 1 and the dilated kernel even.
      kernel_dilation: the distance between kernel taps. Default: 1.
      feature_group_count: the number of blocks into which both features are split; block g of the result
        sees block g of the input only. Default: 1.
      output_padding: elements to add at the high end of each spatial axis, ``0 <= output_padding <
        max(stride, dilation)``, see :func:`jax_cudnn_conv.conv_transpose`. Default: 0.
      output_shape: the spatial extents of the result instead. A call may give others.
      use_bias: add a bias (default True).
      mask: None or an array of the kernel's shape that multiplies it.
      dtype: the dtype to compute in. Default: inferred from inputs and parameters.
      param_dtype: the dtype of the parameters. Default: float32.
      precision, preferred_element_type: as in :func:`jax_cudnn_conv.conv_transpose`.
      kernel_init: None (default), which is LeCun's normal with the variance of what each output sums in
        either layout, or an initialiser. Flax's default takes ``out_features`` for ``in_features`` when
        ``transpose_kernel`` is True.
      bias_init: the bias' initialiser. Default: zeros.
      transpose_kernel: False (default): the kernel is ``(*kernel_size, in_features / groups, out_features)``
        and is not reversed. True: it is that of the convolution which is transposed, ``(*kernel_size,
        out_features / groups, in_features)``, as in Keras and PyTorch.
      use_consistent_padding: False (default): integers pad the input after it was spread, as in Flax, and
        make the result larger. True: they are the padding of the convolution that is transposed, as in
        PyTorch: ``(L-1)*stride + dilation*(K-1) + 1 - low - high + output_padding`` elements.
      promote_dtype: as in Flax.
      rngs: the random keys.
      kernel_metadata, bias_metadata: keywords of the two `flax.nnx.Param`.

    Raises:
      ValueError, TypeError: when built or called; the message names the argument, its value and the form
        wanted.

    Example:
      >>> import jax.numpy as jnp, jax_cudnn_conv as jcc
      >>> from flax import nnx
      >>> layer = jcc.nnx.ConvTranspose(64, 32, (3, 3), strides=2, padding=1, output_padding=1,
      ...     feature_group_count=4, transpose_kernel=True, use_consistent_padding=True, rngs=nnx.Rngs(0))
      >>> layer(jnp.ones((1, 14, 14, 64))).shape, layer.kernel.shape
      ((1, 28, 28, 32), (3, 3, 8, 64))
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int | Sequence[int],
        strides: int | Sequence[int] | None = None,
        *,
        padding: PaddingLike = "SAME",
        kernel_dilation: int | Sequence[int] | None = None,
        feature_group_count: int = 1,
        output_padding: int | Sequence[int] | None = None,
        output_shape: Sequence[int] | None = None,
        use_bias: bool = True,
        mask: Any = None,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        precision: Any = None,
        kernel_init: _layers.Initializer | None = None,
        bias_init: _layers.Initializer = initializers.zeros,
        transpose_kernel: bool = False,
        use_consistent_padding: bool = False,
        promote_dtype: Callable[..., Any] = dtypes.promote_dtype,
        preferred_element_type: Any = None,
        rngs: nnx.Rngs,
        kernel_metadata: Mapping[str, Any] = MappingProxyType({}),
        bias_metadata: Mapping[str, Any] = MappingProxyType({}),
    ):
        self.in_features = in_features
        self.out_features = out_features
        self.kernel_size = _layers.kernel_size(kernel_size)
        self.strides = strides
        self.padding = padding
        self.kernel_dilation = kernel_dilation
        self.feature_group_count = feature_group_count
        self.output_padding = output_padding
        self.output_shape = output_shape
        self.use_bias = use_bias
        self.mask = mask
        self.dtype = dtype
        self.param_dtype = param_dtype
        self.precision = precision
        self.transpose_kernel = transpose_kernel
        self.use_consistent_padding = use_consistent_padding
        self.promote_dtype = promote_dtype
        self.preferred_element_type = preferred_element_type
        self.kernel_shape = _layers.transposed_kernel_shape(
            self.kernel_size, in_features, out_features, feature_group_count, transpose_kernel
        )
        _layers.check_mask(mask, self.kernel_shape)
        if kernel_init is None:
            kernel_init = _layers.transposed_kernel_init(feature_group_count, transpose_kernel)
        kernel = kernel_init(rngs.params(), self.kernel_shape, param_dtype)
        self.kernel = nnx.Param(kernel, **kernel_metadata)
        self.bias = nnx.data(None)
        if use_bias:
            self.bias = nnx.Param(bias_init(rngs.params(), (out_features,), param_dtype), **bias_metadata)

    def __call__(self, inputs: jax.Array, *, output_shape: Sequence[int] | None = None) -> jax.Array:
        """Apply the layer to ``inputs`` of shape ``(*batch, *spatial, in_features)``.

        Any number of batch axes, none included. ``output_shape``, the spatial extents of the result, takes
        the place of the layer's ``output_shape`` and ``output_padding``.
        """
        kernel, bias = self.kernel[...], None if self.bias is None else self.bias[...]
        if self.mask is not None:
            kernel *= self.mask
        inputs, kernel, bias = self.promote_dtype((inputs, kernel, bias), dtype=self.dtype)
        return _layers.conv_transpose(self, inputs, kernel, bias, output_shape)
