"""The layers of `nnx` and `linen`: against Flax's own, the loops of reference.py, and as adjoints of Conv."""

import functools

import harness
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

import jax_cudnn_conv as jcc

flax_nnx = pytest.importorskip("flax.nnx", reason="flax is an optional dependency")
flax_linen = pytest.importorskip("flax.linen", reason="flax is an optional dependency")

KINDS = ("nnx", "linen")


def draw(shape, seed=0, dtype=np.float32):
    return jnp.asarray(np.random.default_rng(seed).integers(-4, 5, shape), dtype)


class Layer:
    """A layer of either kind, from Flax or from us, as a function of a kernel, a bias and inputs."""

    def __init__(self, kind, name, inputs, outputs, *args, ours=True, spatial=None, **keywords):
        self.kind = kind
        if kind == "nnx":
            layers = jcc.nnx if ours else flax_nnx
            rngs = flax_nnx.Rngs(params=0)
            self.module = getattr(layers, name)(inputs, outputs, *args, rngs=rngs, **keywords)
            state = flax_nnx.state(self.module, flax_nnx.Param)
            self.shapes = {k: v.shape for k, v in flax_nnx.to_pure_dict(state).items() if v is not None}
        else:
            layers = jcc.linen if ours else flax_linen
            self.module = getattr(layers, name)(outputs, *args, **keywords)
            rank = 1 if isinstance(args[0], int) else len(args[0])
            x = jax.ShapeDtypeStruct((1, *(spatial or (8,) * rank), inputs), jnp.float32)
            variables = jax.eval_shape(self.module.init, jax.random.key(0), x)
            self.shapes = {k: v.shape for k, v in variables["params"].items()}

    def params(self):
        """Small integers in the place of the random initial values."""
        return {name: draw(shape, seed) for seed, (name, shape) in enumerate(sorted(self.shapes.items()))}

    def __call__(self, params, inputs, **keywords):
        if self.kind == "linen":
            return self.module.apply({"params": params}, inputs, **keywords)
        graph, state = flax_nnx.split(self.module)
        flax_nnx.replace_by_pure_dict(state, dict(params))
        return flax_nnx.merge(graph, state)(inputs, **keywords)


def check_equal_to_flax(kind, name, x_shape, *args, dtype=jnp.float32, **keywords):
    """The same parameters, values and gradients as Flax's layer: integers, so equal to the bit."""
    features = (x_shape[-1], 6)
    ours = Layer(kind, name, *features, *args, **keywords)
    flax = Layer(kind, name, *features, *args, ours=False, **keywords)
    assert ours.shapes == flax.shapes
    params, x = ours.params(), draw(x_shape, 7, dtype)

    def pull_back(layer):
        def pull(params, x):
            y, pull = jax.vjp(layer, params, x)
            return y, pull(draw(y.shape, 8, y.dtype))

        return jax.jit(pull, compiler_options=harness.FAST)(params, x)

    for got, want in zip(*map(jax.tree.leaves, map(pull_back, (ours, flax))), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_array_equal(got, want)


GEOMETRIES = {
    "ints": ((2, 9, 8, 4), (3, 2), {"strides": 2, "padding": 1}),
    "tuples": ((2, 9, 8, 4), (3, 2), {"strides": (1, 2), "padding": (1, 0), "kernel_dilation": (2, 1)}),
    "pairs": ((2, 9, 8, 4), (3, 3), {"strides": 2, "padding": ((2, 1), (0, 1))}),
    "SAME": ((2, 9, 8, 4), (4, 3), {"strides": (2, 3)}),
    "SAME, dilated": ((2, 9, 8, 4), (2, 3), {"kernel_dilation": 2}),
    "VALID": ((2, 9, 8, 4), (4, 3), {"strides": (3, 1), "padding": "VALID"}),
    "CIRCULAR": ((2, 6, 5, 4), (3, 4), {"strides": (1, 2), "padding": "CIRCULAR"}),
    "CIRCULAR, wide": ((2, 3, 4), (8,), {"padding": "CIRCULAR"}),
    "kernel_size an integer": ((2, 9, 4), 3, {}),
    "kernel_size an integer, images": ((2, 3, 9, 4), 3, {}),  # a 1-D convolution with two batch axes
    "unbatched": ((8, 8, 4), (3, 3), {"strides": 2, "padding": 1}),
    "batch axes": ((2, 3, 8, 8, 4), (3, 3), {"strides": 2}),
    "1-D": ((2, 9, 4), (3,), {"strides": 2}),
    "3-D": ((2, 5, 4, 6, 4), (3, 1, 2), {"strides": (1, 2, 3)}),
    "no bias": ((2, 9, 4), (3,), {"use_bias": False}),
    "bfloat16": ((2, 9, 4), (3,), {"dtype": jnp.bfloat16}),
    "float64": ((2, 9, 4), (3,), {"dtype": jnp.float64}),
    "float64 parameters": ((2, 9, 4), (3,), {"param_dtype": jnp.float64}),
}
CONV_ONLY = {
    "groups": ((2, 9, 8, 4), (3, 2), {"feature_group_count": 2, "strides": 2}),
    "REFLECT": ((2, 9, 8, 4), (3, 4), {"strides": (1, 2), "padding": "REFLECT"}),
    "CAUSAL": ((2, 9, 4), (3,), {"kernel_dilation": 2, "padding": "CAUSAL"}),
    "input_dilation": ((2, 5, 6, 4), (3, 2), {"input_dilation": (2, 3), "padding": 1}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", GEOMETRIES | CONV_ONLY)
def test_conv_is_flax_conv(kind, case):
    shape, taps, keywords = (GEOMETRIES | CONV_ONLY)[case]
    check_equal_to_flax(kind, "Conv", shape, taps, **keywords)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", GEOMETRIES)
def test_conv_transpose_is_flax_conv_transpose(kind, case):
    shape, taps, keywords = GEOMETRIES[case]
    check_equal_to_flax(kind, "ConvTranspose", shape, taps, **keywords)


@pytest.mark.parametrize("case", [case for case in GEOMETRIES if "CIRCULAR" not in case])
def test_transpose_kernel_is_flax_transpose_kernel(case):
    shape, taps, keywords = GEOMETRIES[case]
    check_equal_to_flax("nnx", "ConvTranspose", shape, taps, transpose_kernel=True, **keywords)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
def test_masks(kind, name):
    mask = np.tril(np.ones((3, 4, 6), np.float32))
    check_equal_to_flax(kind, name, (2, 8, 4), (3,), mask=jnp.asarray(mask))


def test_preferred_element_type():
    keywords = {"dtype": jnp.bfloat16, "preferred_element_type": jnp.float32}
    for name in ("Conv", "ConvTranspose"):
        check_equal_to_flax("nnx", name, (2, 8, 4), (3,), **keywords)


def test_empty_batch():
    layer = Layer("nnx", "ConvTranspose", 4, 6, (3,), strides=2)
    assert layer(layer.params(), jnp.zeros((0, 5, 8, 4))).shape == (0, 5, 16, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_initial_values_are_flaxs(kind):
    """From the same random keys, by the same names: what was tuned with Flax starts alike."""
    keywords = {"strides": 2}
    layers = [Layer(kind, "ConvTranspose", 4, 6, (3, 3), ours=ours, **keywords) for ours in (True, False)]
    x = draw((1, 5, 5, 4))
    if kind == "nnx":
        got, want = (layer.module(x) for layer in layers)
    else:
        got, want = (layer.module.init_with_output(jax.random.key(3), x) for layer in layers)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), got, want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("transpose_kernel", "groups"), [(False, 1), (True, 1), (True, 2), (False, 2)])
def test_initial_variance_counts_what_an_output_sums(kind, transpose_kernel, groups):
    """1 / (2 inputs a group * 4 taps); Flax has 1 / (256 outputs * 4 taps) for transpose_kernel."""
    inputs, outputs = 2 * groups, 256
    keywords = {"transpose_kernel": transpose_kernel, "feature_group_count": groups}
    if kind == "nnx":
        rngs = flax_nnx.Rngs(0)
        kernel = jcc.nnx.ConvTranspose(inputs, outputs, (4,), rngs=rngs, **keywords).kernel[...]
    else:
        layer = jcc.linen.ConvTranspose(outputs, (4,), **keywords)
        kernel = layer.init(jax.random.key(0), jnp.zeros((1, 8, inputs)))["params"]["kernel"]
    assert kernel.size == 2 * outputs * 4  # so the estimate below is good to about 2 %
    assert float(jnp.std(kernel)) == pytest.approx(8**-0.5, rel=0.08)


# ------------------------------------------------------------------- what Flax's ConvTranspose lacks


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("transpose_kernel", [False, True])
@pytest.mark.parametrize(
    ("spatial", "taps", "strides", "dilation", "pads", "output_padding"),
    [
        ((5, 4), (3, 2), (2, 3), (1, 2), ((1, 0), (0, 1)), (1, 2)),
        ((5,), (4,), (3,), (1,), ((2, 1),), (0,)),
        ((3, 2, 4), (2, 3, 1), (2, 1, 2), (1, 2, 1), ((0, 0), (1, 1), (0, 0)), (1, 1, 1)),
    ],
)
def test_groups_and_output_padding(
    kind, transpose_kernel, spatial, taps, strides, dilation, pads, output_padding
):
    """Against the loops of reference.py, on either layout of the kernel, in both meanings of padding."""
    groups, inputs, outputs = 2, 4, 6
    x = np.random.default_rng(0).integers(-4, 5, (2, inputs, *spatial))
    w = np.random.default_rng(1).integers(-4, 5, (inputs, outputs // groups, *taps))  # of the conv transposed
    lowered = tuple((lo, hi - op) for (lo, hi), op in zip(pads, output_padding, strict=True))
    extents = tuple(map(reference.deconv_extent, spatial, taps, strides, pads, dilation, output_padding))
    want = reference.conv_dx(x, w, extents, strides, lowered, dilation, groups)

    rank = len(taps)
    kernel = np.moveaxis(w, (0, 1), (-1, -2))  # (*taps, out/groups, in)
    if not transpose_kernel:
        kernel = np.flip(kernel, range(rank)).reshape((*taps, outputs // groups, groups, inputs // groups))
        kernel = np.moveaxis(kernel, -1, -3).swapaxes(-1, -2)  # (*taps, in/groups, groups, out/groups)
        kernel = kernel.reshape((*taps, inputs // groups, outputs))
    for consistent in (True, False):
        padding = pads
        if not consistent:
            spans = [d * (k - 1) for d, k in zip(dilation, taps, strict=True)]
            padding = tuple((s - lo, s - hi) for s, (lo, hi) in zip(spans, pads, strict=True))
        keywords = {
            "strides": strides,
            "padding": padding,
            "kernel_dilation": dilation,
            "feature_group_count": groups,
            "transpose_kernel": transpose_kernel,
            "use_consistent_padding": consistent,
            "use_bias": False,
        }
        channels_last = jnp.asarray(np.moveaxis(x, 1, -1), jnp.float32)
        params = {"kernel": jnp.asarray(kernel, jnp.float32)}
        for size in ({"output_padding": output_padding}, {"output_shape": extents}):
            layer = Layer(kind, "ConvTranspose", inputs, outputs, taps, spatial=spatial, **keywords, **size)
            assert layer.shapes == {"kernel": kernel.shape}
            np.testing.assert_array_equal(layer(params, channels_last), np.moveaxis(want, 1, -1))
        layer = Layer(kind, "ConvTranspose", inputs, outputs, taps, **keywords)
        got = layer(params, channels_last, output_shape=extents)
        np.testing.assert_array_equal(got, np.moveaxis(want, 1, -1))


@pytest.mark.parametrize("padding", ["SAME", "VALID", "CIRCULAR", "REFLECT", "CAUSAL", 1])
@pytest.mark.parametrize("taps", [3, 4, 5])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2])
def test_adjoint_of_conv(padding, taps, stride, dilation):
    """<conv(x), y> = <x, conv_transpose(y)>, with the same kernel and arguments, exactly, and under vmap."""
    kind, groups = ("nnx", 2) if stride < 3 else ("linen", 1)
    keywords = {
        "strides": stride,
        "padding": padding,
        "kernel_dilation": dilation,
        "feature_group_count": groups,
        "use_bias": False,
    }
    extent = 12 if stride == 3 else 11
    conv = Layer(kind, "Conv", 4, 6, (taps,), **keywords)
    keywords |= {"transpose_kernel": True, "use_consistent_padding": True}
    transposed = Layer(kind, "ConvTranspose", 6, 4, (taps,), **keywords)
    assert conv.shapes == transposed.shapes
    params, x = conv.params(), draw((2, 3, extent, 4), 5)

    @functools.partial(jax.jit, compiler_options=harness.FAST)
    def both(params, x):
        y, pull = jax.vjp(functools.partial(conv, params), x)
        ct = draw(y.shape, 6)
        back = jax.vmap(lambda y: transposed(params, y, output_shape=(extent,)))(ct)
        return y, ct, back, *pull(ct)

    y, ct, back, gradient = map(np.asarray, both(params, x))
    assert back.shape == x.shape
    assert np.vdot(y, ct) == np.vdot(x, back)
    np.testing.assert_array_equal(back, gradient)


@pytest.mark.parametrize(("mode", "extents"), [("CIRCULAR", (18, 10)), ("REFLECT", (18, 10))])
def test_padded_modes_give_extents_times_strides(mode, extents):
    layer = Layer("linen", "ConvTranspose", 2, 3, (3, 5), strides=(2, 1), padding=mode)
    assert layer(layer.params(), draw((4, 9, 10, 2))).shape == (4, *extents, 3)


def test_circular_under_vmap():
    layer = Layer("nnx", "ConvTranspose", 2, 5, (3,), padding="CIRCULAR")
    params, x = layer.params(), draw((8, 4, 32, 2))
    got = jax.jit(jax.vmap(lambda x: layer(params, x)))(x)
    assert got.shape == (8, 4, 32, 5)
    np.testing.assert_array_equal(got, layer(params, x))


@pytest.mark.parametrize(
    ("padding", "consistent", "length"), [(0, False, 10), (1, False, 12), (0, True, 16), (1, True, 14)]
)
def test_the_two_meanings_of_padding(padding, consistent, length):
    layer = Layer(
        "linen", "ConvTranspose", 1, 1, (4,), strides=(4,), padding=padding, use_consistent_padding=consistent
    )
    assert layer(layer.params(), draw((1, 4, 1))).shape == (1, length, 1)


def test_transpose_kernel_reverses():
    for transpose_kernel, want in ((False, [3, 2, 1, 0, 0]), (True, [1, 2, 3, 0, 0])):
        layer = Layer(
            "nnx", "ConvTranspose", 1, 1, (3,), strides=2, padding="VALID", transpose_kernel=transpose_kernel
        )
        params = {"kernel": jnp.asarray([1.0, 2, 3]).reshape(3, 1, 1), "bias": jnp.zeros(1)}
        assert layer(params, jnp.asarray([[[1.0], [0]]])).ravel().tolist() == want


# ------------------------------------------------------------------------- kernels, errors, imports


@pytest.mark.parametrize("kind", KINDS)
def test_layers_and_their_gradients_run_natively(kind, native_missing):
    if native_missing:
        pytest.skip(native_missing)
    keywords = {"feature_group_count": 2, "strides": 2, "padding": 1}
    for name, more in (
        ("Conv", {}),
        ("ConvTranspose", {"output_padding": 1, "use_consistent_padding": True}),
    ):
        layer = Layer(kind, name, 8, 16, (3, 3), **keywords, **more)

        def loss(params, x):
            return jnp.sum(layer(params, x) ** 2)  # noqa: B023

        step = jax.jit(jax.grad(loss, (0, 1)))
        assert harness.counts(step.lower(layer.params(), draw((2, 8, 8, 8))).as_text()) == (3, 0)


@pytest.mark.parametrize(
    ("keywords", "x", "message"),
    [
        ({"feature_group_count": 3}, (1, 5, 4), "feature_group_count must divide"),
        ({"feature_group_count": 0}, (1, 5, 4), "feature_group_count must be between 1"),
        ({"mask": jnp.ones((3, 6, 4))}, (1, 5, 4), r"mask must have the shape \(3, 4, 6\)"),
        ({"strides": 0}, (1, 5, 4), "strides must be between 1"),
        (
            {"kernel_dilation": (1, 1)},
            (1, 5, 4),
            "kernel_dilation must be an integer or one for each of the 1",
        ),
        ({"padding": "BOUNCE"}, (1, 5, 4), "padding must be one of"),
        (
            {"padding": "CIRCULAR", "output_padding": 1},
            (1, 5, 4),
            "output_padding cannot be given with padding",
        ),
        (
            {"padding": "REFLECT", "output_shape": (7,), "strides": 2},
            (1, 5, 4),
            "output_shape must be extents that",
        ),
        ({"output_padding": 1}, (1, 5, 4), r"output_padding\[0\] must be between 0 and 0"),
        ({"output_padding": 1, "output_shape": (5,)}, (1, 5, 4), "exclude each other"),
        ({}, (4,), "inputs must have 1 spatial axes"),
        ({}, (1, 5, 3), "x must have 4 channels"),
    ],
)
def test_errors(keywords, x, message):
    with pytest.raises(ValueError, match=message):
        jcc.nnx.ConvTranspose(4, 6, (3,), rngs=flax_nnx.Rngs(0), **keywords)(jnp.zeros(x))


def test_causal_wants_one_axis():
    layer = jcc.linen.ConvTranspose(6, (3, 3), padding="CAUSAL")
    with pytest.raises(ValueError, match="'CAUSAL' wants one spatial axis; got 2"):
        jax.eval_shape(layer.init, jax.random.key(0), jnp.zeros((1, 5, 5, 4)))


def test_flax_is_imported_at_first_use():
    script = (
        "import sys, jax_cudnn_conv as jcc; assert 'flax' not in sys.modules; "
        "jcc.linen.Conv; assert 'flax' in sys.modules; assert not hasattr(jcc, 'haiku')"
    )
    harness.python("-W", "ignore", "-c", script)
