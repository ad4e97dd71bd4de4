"""Record what other libraries compute for the cases in porting_values.json, which test_porting.py compares.

    python tests/record_porting.py torch    # or jax, flax, keras, tensorflow, mxnet

writes the library's version and its results into the file; the other libraries' stay. A case is one line of
the file: the recipe of docs/porting.md that must give the same, the shapes of its arrays, its other
arguments, and the result. To add one, write a line without `shape` and `values` and run this.

tensorflow-cpu and mxnet 1.9.1 (Python 3.11, numpy 1.23.5) want an environment of their own. This script needs
only NumPy and the library that is recorded. MXNet's CPU kernels do not all work: those from oneDNN fail with
target_shape, its own are wrong with dilate. So it is recorded twice, the second time with
MXNET_MKLDNN_ENABLED=0, and each run writes only the results that the kernels in it can give.
"""

import json
import math
import os
import pathlib
import sys

import numpy as np

FILE = pathlib.Path(__file__).with_name("porting_values.json")


def load():
    return json.loads(FILE.read_text())


def draw(shapes):
    """Arrays of the integers -3 to 3 from a formula: by name, in a dictionary as `shapes` is."""

    def array(shape, seed):
        k = np.arange(math.prod(shape)) + 37 * seed
        return ((31 * k * k + 17 * k) % 101 % 7 - 3).astype(np.float32).reshape(shape)

    return {
        name: draw(shape) if isinstance(shape, dict) else array(shape, seed)
        for seed, (name, shape) in enumerate(shapes.items())
    }


def tuples(value):
    """Lists as tuples, which some libraries insist on."""
    return tuple(map(tuples, value)) if isinstance(value, list) else value


def run_torch(recipe, arrays, arguments):
    import torch
    import torch.nn.functional as F

    tensors = {k: torch.tensor(a) for k, a in arrays.items() if not isinstance(a, dict)}
    if recipe == "autoencoder":
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, (3, 2), stride=2, padding=1, groups=1),
            torch.nn.ReLU(),
            torch.nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, output_padding=1, groups=2),
        )
        model.load_state_dict({k: torch.tensor(a) for k, a in arrays["params"].items()})
        return model(tensors["x"]).detach().numpy()
    rank = next(iter(tensors.values())).ndim - 2
    if recipe == "torch_conv_input":
        return getattr(torch.nn.grad, f"conv{rank}d_input")(**arguments, **tensors).numpy()
    if recipe == "torch_conv_weight":
        return getattr(torch.nn.grad, f"conv{rank}d_weight")(**arguments, **tensors).numpy()
    weight, bias, groups = tensors["weight"], tensors.get("bias"), arguments.get("groups", 1)
    layer, keywords = None, {"kernel_size": tuple(weight.shape[2:]), "bias": bias is not None} | arguments
    if "padding_mode" in arguments:  # the functions do not have it
        layer = getattr(torch.nn, f"Conv{rank}d")(weight.shape[1] * groups, weight.shape[0], **keywords)
        call = {}
    if "output_size" in arguments:  # nor this
        call = {"output_size": keywords.pop("output_size")}
        layer = getattr(torch.nn, f"ConvTranspose{rank}d")(
            weight.shape[0], weight.shape[1] * groups, **keywords
        )
    if layer is None:
        name = {"torch_conv": f"conv{rank}d", "torch_conv_transpose": f"conv_transpose{rank}d"}[recipe]
        return getattr(F, name)(**tensors, **arguments).numpy()
    layer.load_state_dict({k: tensors[k] for k in ("weight", "bias") if k in tensors})
    return layer(tensors["input"], **call).detach().numpy()


def select_keras_backend():
    """Keras reads it when it is imported, and without it asks for TensorFlow."""
    os.environ.setdefault("KERAS_BACKEND", "jax")


def run_keras(recipe, arrays, arguments):
    select_keras_backend()
    import keras

    x, kernel, bias = arrays["inputs"], arrays["kernel"], arrays.get("bias")
    rank = x.ndim - 2
    arguments = {"kernel_size": kernel.shape[:rank], "use_bias": bias is not None} | arguments
    if recipe == "keras_conv":
        layer = getattr(keras.layers, f"Conv{rank}D")(kernel.shape[-1], **arguments)
    elif recipe == "keras_conv_transpose":
        layer = getattr(keras.layers, f"Conv{rank}DTranspose")(kernel.shape[-2], **arguments)
    else:
        layer = getattr(keras.layers, f"DepthwiseConv{rank}D")(depth_multiplier=kernel.shape[-1], **arguments)
    layer.build(x.shape)
    layer.set_weights([kernel] if bias is None else [kernel, bias])
    return np.asarray(layer(x))


def run_mxnet(recipe, arrays, arguments):
    native = os.environ.get("MXNET_MKLDNN_ENABLED") == "0"
    if native != ("target_shape" in arguments):
        return None
    import mxnet as mx

    arrays = {k: mx.nd.array(a) for k, a in arrays.items()}
    arguments = {k: tuples(v) for k, v in arguments.items()}
    return getattr(mx.nd, {"mxnet_deconvolution": "Deconvolution"}[recipe])(**arrays, **arguments).asnumpy()


def run_tensorflow(recipe, arrays, arguments):
    import tensorflow as tf

    function = {
        "tf_conv2d": tf.raw_ops.Conv2D,
        "tf_conv3d": tf.raw_ops.Conv3D,
        "tf_conv2d_backprop_input": tf.raw_ops.Conv2DBackpropInput,
        "tf_conv2d_backprop_filter": tf.raw_ops.Conv2DBackpropFilter,
        "tf_conv3d_backprop_input": tf.raw_ops.Conv3DBackpropInputV2,
        "tf_conv3d_backprop_filter": tf.raw_ops.Conv3DBackpropFilterV2,
        "tf_conv_transpose": tf.nn.conv_transpose,
        "tf_depthwise_conv2d": tf.raw_ops.DepthwiseConv2dNative,
        "tf_depthwise_conv2d_backprop_input": tf.raw_ops.DepthwiseConv2dNativeBackpropInput,
        "tf_depthwise_conv2d_backprop_filter": tf.raw_ops.DepthwiseConv2dNativeBackpropFilter,
    }[recipe]
    return function(**arrays, **arguments).numpy()


def run_jax(recipe, arrays, arguments):
    from jax import lax

    name = {"lax_conv_transpose": "conv_transpose"}.get(recipe, "conv_general_dilated")
    arguments = {k: tuples(v) for k, v in arguments.items()}
    return np.asarray(getattr(lax, name)(**arrays, **arguments))


def run_flax(recipe, arrays, arguments):
    import flax.linen as nn

    x, kernel = arrays["lhs"], arrays["rhs"]
    rank = x.ndim - 2
    layer = {"lax_conv_transpose": nn.ConvTranspose}[recipe](
        kernel.shape[-2 if arguments.get("transpose_kernel") else -1],
        kernel.shape[:rank],
        strides=tuples(arguments["strides"]),
        padding=tuples(arguments["padding"]),
        kernel_dilation=tuples(arguments.get("rhs_dilation")),
        transpose_kernel=arguments.get("transpose_kernel", False),
        use_bias=False,
    )
    return np.asarray(layer.apply({"params": {"kernel": kernel}}, x))


RUN = {name: globals()[f"run_{name}"] for name in ("torch", "keras", "mxnet", "tensorflow", "jax", "flax")}


def compute(library, case):
    """The result of a case from the library itself; None where this run cannot tell."""
    return RUN[library](case["recipe"], draw(case["shapes"]), case["arguments"])


def dump(libraries):
    """Write the file, a line for each case."""
    blocks = []
    for library, entry in libraries.items():
        cases = ",\n".join(
            f"{json.dumps(name)}: {json.dumps(case, separators=(',', ':'))}"
            for name, case in entry["cases"].items()
        )
        blocks.append(
            f'{json.dumps(library)}: {{"version": {json.dumps(entry["version"])}, "cases": {{\n{cases}\n}}}}'
        )
    FILE.write_text("{\n" + ",\n".join(blocks) + "\n}\n")


def main(library):
    libraries = load()
    for name, case in libraries[library]["cases"].items():
        try:
            result = compute(library, case)
        except Exception as error:
            raise SystemExit(f"{library}: {name}: {error}") from error
        if result is not None:
            if not result.size or (result != result.round()).any():
                raise SystemExit(f"{library}: {name}: not a few integers: {result}")
            case.update(shape=list(result.shape), values=result.astype(int).ravel().tolist())
    libraries[library]["version"] = sys.modules[library].__version__
    dump(libraries)


if __name__ == "__main__":
    main(sys.argv[1])
