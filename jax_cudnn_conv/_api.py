"""The public functions: normalise and check what the user wrote, then bind one primitive."""

from collections.abc import Sequence
from typing import Any, Literal

import jax

from jax_cudnn_conv import _arguments as args
from jax_cudnn_conv import _fused, _process
from jax_cudnn_conv._arguments import DimensionNumbers, PaddingLike
from jax_cudnn_conv._primitives import DGRAD, WGRAD, bind
from jax_cudnn_conv._spec import ConvSpec, Ints, Pads, output_extent, string_padding, transposed_extents
from jax_cudnn_conv.options import current


def conv(
    x: Any,
    kernel: Any,
    *,
    strides: int | Sequence[int] = 1,
    padding: PaddingLike = "SAME",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    dimension_numbers: DimensionNumbers | None = None,
    bias: Any = None,
    activation: str | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> jax.Array:
    """Convolve ``x`` with ``kernel`` (a cross-correlation, as everywhere in deep learning).

    ``y[n, q, o] = sum over k, i of x[n, q*strides - low + k*dilation, i] * kernel[k, i, o]``, where x is
    zero outside its extents; an axis of extent L becomes
    ``floor((L + low + high - dilation*(K-1) - 1) / strides) + 1``, or 0 if the kernel does not fit.

    Args:
      x: the input, ``(batch, *spatial, in_features)`` by default; any number of spatial axes.
      kernel: ``(*kernel_spatial, in_features / groups, out_features)`` by default, of x's dtype.
      strides: the step of the kernel in elements, one integer or one for each spatial axis.
      padding: ``"SAME"`` (``ceil(L / stride)`` outputs, the odd pad element high), ``"SAME_LOWER"`` (the
        odd one low), ``"VALID"`` (none), in any case; an integer for both sides of all axes; or for
        each axis an integer or a ``(low, high)`` pair. Negative pads crop.
      dilation: the distance between kernel taps in elements; 1 means adjacent.
      groups: the number of blocks into which input and output features are split; block g of the
        output sees block g of the input only. ``groups = in_features`` is a depthwise convolution.
      dimension_numbers: the layouts of x, kernel and result as three strings (N batch, C channels, I/O
        input/output features, other letters spatial) or a `lax.ConvDimensionNumbers`. Any order works
        and none costs a transpose. Default: channels last, such as ``("NHWC", "HWIO", "NHWC")``.
      bias: None or an array of shape ``(out_features,)``, added to the result.
      activation: None or ``"relu"``, applied last.
      precision: as in `jax.lax`: None (JAX's default), a `lax.Precision`, a pair of them, or a
        `lax.DotAlgorithmPreset`. HIGHEST is exact float32, in the gradients too.
      preferred_element_type: the dtype of the result, as in `jax.lax`. Default: x's dtype. Sums of 16-bit
        floats are float32 and rounded once; sums of integers have the result's dtype and wrap.

    Returns:
      The result, ``(batch, *spatial, out_features)`` by default.

    Raises:
      ValueError, TypeError: while tracing; the message names the argument, its value and the form wanted.

    Example:
      >>> import jax.numpy as jnp, jax_cudnn_conv as jcc
      >>> jcc.conv(jnp.ones((8, 32, 32, 16)), jnp.ones((3, 3, 4, 64)), strides=2, groups=4).shape
      (8, 16, 16, 64)

    The definition is that of `jax.lax.conv_general_dilated` and of ONNX's ``Conv``.
    """
    x, kernel = args.array("x", x), args.array("kernel", kernel)
    dims = args.dimension_numbers(dimension_numbers, x=x.ndim, kernel=kernel.ndim)
    x_spatial = tuple(x.shape[d] for d in dims[0][2:])
    spec = _spec(dims, x_spatial, kernel, strides, padding, dilation, groups)
    _check_crop(spec)
    _check_features(spec, "x", x, kernel)
    params = _params(precision, preferred_element_type, x=x, kernel=kernel)
    relu = args.activation(activation) == "relu"
    if bias is not None:
        bias = args.bias(bias, kernel.shape[spec.w_dims[0]], params["out_dtype"])
    return _fused.conv(x, kernel, bias, relu=relu, spec=spec, **params)


def conv_transpose(
    x: Any,
    kernel: Any,
    *,
    strides: int | Sequence[int] = 1,
    padding: PaddingLike = "SAME",
    output_padding: int | Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    dimension_numbers: DimensionNumbers | None = None,
    bias: Any = None,
    activation: str | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> jax.Array:
    """Transposed convolution: the linear transpose of :func:`conv` with the same kernel and arguments.

    ``x`` takes the place of the convolution's output, the result that of its input:
    ``y[n, q*strides - low + k*dilation, i] += x[n, q, o] * kernel[k, i, o]``. An axis of extent L becomes

    ==============  =====================================================================
    padding         extent of the result
    ==============  =====================================================================
    "SAME"          ``L*stride``
    "VALID"         ``L*stride + max(dilation*(K-1) + 1 - stride, 0)``
    explicit        ``(L-1)*stride + dilation*(K-1) + 1 - low - high + output_padding``
    ==============  =====================================================================

    Args:
      x: the input, ``(batch, *spatial, in_features)`` by default.
      kernel: the kernel of the convolution that is transposed: ``(*kernel_spatial,
        out_features / groups, in_features)`` by default (Keras' layout); with layout ``"OIHW"`` it is
        PyTorch's ``(in_features, out_features / groups, *kernel_spatial)``.
      strides: as in :func:`conv`; here they spread x's elements apart.
      padding: the padding **of the convolution that is transposed**, as in PyTorch: more padding makes
        the result smaller. Strings and forms as in :func:`conv`.
      output_padding: elements to add at the high end of each axis, an integer or one for each,
        ``0 <= output_padding < max(stride, dilation)``. A strided convolution maps several extents to
        the same one; this says which is meant. It is the same as lowering the high pad by as much, so
        the added elements hold real values where kernel taps reach them. Default: 0.
      output_shape: the spatial extents of the result instead, one for each axis: those that the formula
        gives with an allowed ``output_padding`` or, for a string padding, those that :func:`conv` with
        that padding maps to x's extents.
      dilation, groups: as in :func:`conv`.
      dimension_numbers: the layouts of x, kernel and result. Default: channels last.
      bias: None or an array of shape ``(out_features,)``.
      activation, precision, preferred_element_type: as in :func:`conv`.

    Returns:
      The result, ``(batch, *spatial, out_features)`` by default.

    Raises:
      ValueError, TypeError: while tracing; the message names the argument, its value and the form wanted.

    Example:
      >>> import jax.numpy as jnp, jax_cudnn_conv as jcc
      >>> x, kernel = jnp.ones((1, 14, 14, 64)), jnp.ones((3, 3, 32, 64))
      >>> jcc.conv_transpose(x, kernel, strides=2, padding=1, output_padding=1).shape
      (1, 28, 28, 32)

    The values for "SAME" and "VALID" are those of `jax.lax.conv_transpose` with ``transpose_kernel=True``,
    those for explicit pads PyTorch's ``conv_transposeNd``.
    """
    x, kernel = args.array("x", x), args.array("kernel", kernel)
    y_dims, w_dims, x_dims = args.dimension_numbers(dimension_numbers, x=x.ndim, kernel=kernel.ndim)
    rank = x.ndim - 2
    strides, dilation = args.per_axis("strides", strides, rank), args.per_axis("dilation", dilation, rank)
    padding = args.padding(padding, rank)
    spatial, taps = (tuple(a.shape[d] for d in dims[2:]) for a, dims in ((x, y_dims), (kernel, w_dims)))
    extents, pads = _result_extents(spatial, taps, strides, padding, dilation, output_padding, output_shape)
    spec = _spec((x_dims, w_dims, y_dims), extents, kernel, strides, pads, dilation, groups)
    _check_features(spec, "y", x, kernel)
    params = _params(precision, preferred_element_type, x=x, kernel=kernel)
    y = bind(DGRAD, x, kernel, spec=spec, **params)
    channels = spec.x_dims[1]
    if bias is not None:
        y = _fused.add_bias(y, args.bias(bias, y.shape[channels], y.dtype), channels)
    return jax.nn.relu(y) if args.activation(activation) == "relu" else y


def conv_backward_data(
    y: Any,
    kernel: Any,
    *,
    input_shape: Sequence[int],
    strides: int | Sequence[int] = 1,
    padding: PaddingLike = "SAME",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    dimension_numbers: DimensionNumbers | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> jax.Array:
    """The gradient of ``sum(conv(x, kernel) * y)`` with respect to an x of shape ``input_shape``.

    Args:
      y: the cotangent of the convolution's output, of the output's shape.
      kernel: the convolution's kernel.
      input_shape: the whole shape of x, in the order of ``dimension_numbers``.
      strides, padding, dilation, groups, dimension_numbers: the convolution's, as in :func:`conv`.
      precision, preferred_element_type: as in :func:`conv`.

    Returns:
      An array of shape ``input_shape``; elements that the convolution never reads are 0.

    Raises:
      ValueError, TypeError: while tracing; the message names the argument, its value and the form wanted.

    Example:
      >>> import jax.numpy as jnp, jax_cudnn_conv as jcc
      >>> y, kernel = jnp.ones((1, 2, 1)), jnp.ones((4, 1, 1))
      >>> jcc.conv_backward_data(y, kernel, input_shape=(1, 11, 1), strides=4, padding=0).ravel().tolist()
      [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]

    The definition is that of TensorFlow's ``conv2d_backprop_input``.
    """
    y, kernel = args.array("y", y), args.array("kernel", kernel)
    dims = args.dimension_numbers(dimension_numbers, y=y.ndim, kernel=kernel.ndim)
    shape = args.shape("input_shape", input_shape, y.ndim)
    x_spatial = tuple(shape[d] for d in dims[0][2:])
    spec = _spec(dims, x_spatial, kernel, strides, padding, dilation, groups)
    _check_crop(spec)
    features = spec.features("x", shape) | spec.features("w", kernel.shape)
    _check_shape("input_shape", shape, spec.shape("x", **features), "y and kernel have the features of")
    _check_shape("y", y.shape, spec.shape("y", **features), f"an x of shape {shape} convolves to")
    params = _params(precision, preferred_element_type, y=y, kernel=kernel)
    return bind(DGRAD, y, kernel, spec=spec, **params)


def conv_backward_filter(
    x: Any,
    y: Any,
    *,
    kernel_shape: Sequence[int],
    strides: int | Sequence[int] = 1,
    padding: PaddingLike = "SAME",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    dimension_numbers: DimensionNumbers | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> jax.Array:
    """The gradient of ``sum(conv(x, kernel) * y)`` with respect to a kernel of shape ``kernel_shape``.

    Args:
      x: the convolution's input.
      y: the cotangent of its output, of the output's shape.
      kernel_shape: the whole shape of the kernel, in the order of ``dimension_numbers``.
      strides, padding, dilation, groups, dimension_numbers: the convolution's, as in :func:`conv`.
      precision, preferred_element_type: as in :func:`conv`.

    Returns:
      An array of shape ``kernel_shape``.

    Raises:
      ValueError, TypeError: while tracing; the message names the argument, its value and the form wanted.

    Example:
      >>> import jax.numpy as jnp, jax_cudnn_conv as jcc
      >>> x, y = jnp.arange(6.0).reshape(1, 6, 1), jnp.ones((1, 2, 1))
      >>> jcc.conv_backward_filter(x, y, kernel_shape=(3, 1, 1), strides=2, padding=0).ravel().tolist()
      [2.0, 4.0, 6.0]

    The definition is that of TensorFlow's ``conv2d_backprop_filter``.
    """
    x, y = args.array("x", x), args.array("y", y)
    dims = args.dimension_numbers(dimension_numbers, x=x.ndim, y=y.ndim)
    shape = args.shape("kernel_shape", kernel_shape, x.ndim)
    kernel = jax.ShapeDtypeStruct(shape, x.dtype)
    x_spatial = tuple(x.shape[d] for d in dims[0][2:])
    spec = _spec(dims, x_spatial, kernel, strides, padding, dilation, groups)
    _check_crop(spec)
    _check_features(spec, "x", x, kernel)
    features = spec.features("x", x.shape) | spec.features("w", shape)
    _check_shape("y", y.shape, spec.shape("y", **features), f"x of shape {x.shape} convolves to")
    params = _params(precision, preferred_element_type, x=x, y=y)
    return bind(WGRAD, x, y, spec=spec, **params)


def _spec(dims, x_spatial: Ints, kernel, strides, padding, dilation, groups) -> ConvSpec:
    """The checked geometry of a convolution over ``x_spatial``."""
    x_dims, w_dims, y_dims = dims
    rank = len(x_spatial)
    strides, dilation = args.per_axis("strides", strides, rank), args.per_axis("dilation", dilation, rank)
    padding = args.padding(padding, rank)
    groups = args.integer("groups", groups, 1)
    taps = tuple(kernel.shape[d] for d in w_dims[2:])
    if 0 in taps:
        raise ValueError(f"kernel must have at least one tap on each spatial axis; got shape {kernel.shape}")
    if isinstance(padding, str):
        padding = string_padding(padding, x_spatial, taps, strides, dilation)
    out_features = kernel.shape[w_dims[0]]
    if out_features % groups:
        raise ValueError(
            f"groups must divide the kernel's output features; got groups={groups} and {out_features} "
            f"(axis {w_dims[0]} of kernel shape {kernel.shape})"
        )
    return ConvSpec(x_dims, w_dims, y_dims, x_spatial, taps, strides, padding, dilation, groups)


def _check_crop(spec: ConvSpec) -> None:
    for extent, (low, high) in zip(spec.x_spatial, spec.padding, strict=True):
        if isinstance(extent, int) and extent + low + high < 0:
            raise ValueError(f"padding must not crop more than there is: ({low}, {high}) on extent {extent}")


def _result_extents(
    spatial: Ints,
    taps: Ints,
    strides: Ints,
    padding: str | Pads,
    dilation: Ints,
    output_padding: Any,
    output_shape: Any,
) -> tuple[Ints, Pads]:
    """The extents of a transposed convolution's result and the pads that leave no remainder."""
    rank = len(spatial)
    extents, pads = transposed_extents(padding, spatial, taps, strides, dilation)
    added: Ints = (0,) * rank
    if output_padding is not None and output_shape is not None:
        raise ValueError(
            f"output_padding and output_shape exclude each other; got {output_padding!r} and {output_shape!r}"
        )
    if output_padding is not None:
        entries = args.per_axis("output_padding", output_padding, rank, low=0)
        for k, (op, s, d) in enumerate(zip(entries, strides, dilation, strict=True)):
            args.integer(f"output_padding[{k}]", op, 0, max(s, d) - 1)
        added = entries
    elif output_shape is not None:
        wished = args.shape("output_shape", output_shape, rank)
        if isinstance(padding, str):
            pads = string_padding(padding, wished, taps, strides, dilation)
            reached = tuple(map(output_extent, wished, taps, strides, pads, dilation))
            if reached != spatial:
                raise ValueError(
                    f"output_shape must be extents that a {padding} convolution maps to x's {spatial}; "
                    f"got {wished}, which it maps to {reached}"
                )
            return wished, pads
        added = tuple(w - e for w, e in zip(wished, extents, strict=True))
        limits = tuple(e + max(s, d) - 1 for e, s, d in zip(extents, strides, dilation, strict=True))
        if any(not e <= w <= limit for e, w, limit in zip(extents, wished, limits, strict=True)):
            raise ValueError(f"output_shape must be between {extents} and {limits}; got {wished}")
    extents = tuple(e + op for e, op in zip(extents, added, strict=True))
    if any(isinstance(e, int) and e < 0 for e in extents):
        raise ValueError(
            f"padding must leave a result of extent 0 or more; got padding {padding} on x of extents "
            f"{spatial}, which gives {extents}"
        )
    return extents, tuple((low, high - op) for (low, high), op in zip(pads, added, strict=True))


def _check_features(spec: ConvSpec, role: Literal["x", "y"], x: Any, kernel: Any) -> None:
    """Check the channels of ``x``, in the place of the convolution's x or y, against the kernel's."""
    kernel_axis = spec.w_dims[0 if role == "y" else 1]  # its output or its input features
    features = kernel.shape[kernel_axis]
    groups = 1 if role == "y" else spec.groups  # the output features count all groups already
    axis = spec.dims(role)[1]
    if x.shape[axis] != features * groups:
        for_each = f" for each of {groups} groups" if groups > 1 else ""
        raise ValueError(
            f"x must have {features * groups} channels, since kernel of shape {kernel.shape} has {features} "
            f"on axis {kernel_axis}{for_each}; got {x.shape[axis]} (axis {axis} of x of shape {x.shape})"
        )


def _check_shape(name: str, shape: Sequence[int], wanted: Sequence[int], why: str) -> None:
    if tuple(shape) != tuple(wanted):
        raise ValueError(f"{name} must have the shape {tuple(wanted)} that {why}; got {tuple(shape)}")


def _params(precision: Any, preferred: Any, **operands: jax.Array) -> dict[str, Any]:
    _process.check_not_forked()
    return {
        "out_dtype": args.result_dtype(preferred, **operands),
        "precision": args.precision(precision),
        "options": current(),
    }
