"""What went wrong elsewhere, at the sizes at which it did, where no other file has it."""

import functools

import harness
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
import reference
import scipy.signal
from jax import lax

import jax_cudnn_conv as jcc

pytestmark = pytest.mark.usefixtures("unpatched")


def draw(rng, *shape, largest=4):
    return rng.integers(-largest, largest + 1, shape).astype(np.float32)


def is_fast(kernel):
    """Computed by the native library, and not by its loop for whatever has no kernel."""
    return kernel.backend != "xla" and "ref" not in kernel.name


def slow_kernels(problem):
    """Those of value and gradients that are not fast."""
    x, w, y = (jax.ShapeDtypeStruct(harness.arrays(problem)[r].shape, np.float32) for r in "xwy")
    arguments = {"x": x, "w": w, "y": y}
    found = []
    for name in ("conv", "conv_transpose", "conv_backward_filter"):
        operands = (arguments[role] for role in harness.ROLES[name][:2])
        found += jcc.explain(harness.function(name, problem), *operands)
    assert [e.direction for e in found] == ["conv_fwd", "conv_dgrad", "conv_wgrad"]
    return [str(e) for e in found if not is_fast(e.kernel)]


# The problem of a transposed convolution is written from its output to its input.
GRADIENTS_OF_TRANSPOSED = ("n8i64o64_h56k3s2p0,1_w56k3s2p0,1", "n1i1o32_d32k3s2p0,1_h32k3s2p0,1_w32k3s2p0,1")


@pytest.mark.parametrize("text", GRADIENTS_OF_TRANSPOSED)
def test_c48_gradients_of_a_transposed_convolution(text):
    """Value and both gradients, of ours and of `jax.lax`'s where it is patched."""
    problem = problems.parse(text)
    x, w = harness.operands("conv_transpose", problem)
    v = harness.arrays(problem)["x"]
    wanted = (
        harness.oracle("conv_transpose", problem, x, w),
        harness.third(problem, "y", x=v, w=w),
        harness.third(problem, "w", x=v, y=x),
    )

    def ours(x, w):
        return jcc.conv_transpose(x, w, strides=2)

    def theirs(x, w):
        return lax.conv_transpose(x, w, problem.strides, "SAME", transpose_kernel=True)

    def results(function):
        out, vjp = jax.vjp(jax.jit(function), x, w)
        return out, *jax.jit(vjp)(v)

    jax.tree.map(harness.assert_equal, results(ours), wanted)
    with jcc.patch_jax():
        jax.tree.map(harness.assert_equal, results(theirs), wanted)


FAST = (
    *GRADIENTS_OF_TRANSPOSED,
    # C49: groups and depthwise, dilated too.
    *(f"g{g}_n8i64o64_h56k3p{d}d{d}_w56k3p{d}d{d}" for g in (1, 2, 8, 32, 64) for d in (1, 4)),
    # C50: transposed: a kernel of 1024 with a stride of 256; an image and a volume; groups, dilation, both;
    # one output channel; ten lengths.
    "n1i1o1026_w58112k1024s256",
    "n1i16o16_h256k3s2p0,1_w256k3s2p0,1",
    "n1i64o64_d40k2s2_h40k2s2_w40k2s2",
    "g4_n1i16o16_h64k3s2p0,1_w64k3s2p0,1",
    "g4_n1i16o16_h64k3s2p1,2d2_w64k3s2p1,2d2",
    "n1i16o16_h64k3s2p2,3d3_w64k3s2p2,3d3",
    "g16_n1i16o16_h64k3s2p0,1_w64k3s2p0,1",
    "n1i1o64_h64k4s2p1_w64k4s2p1",
    *(f"n1i32o64_w{256 * length}k16s8p4" for length in range(3, 13)),
    # C53: kernels as wide as RepLKNet's and SLaK's, over channels and over electrodes.
    *(f"g64_n2i64o64_h28k{k}p{k // 2}_w28k{k}p{k // 2}" for k in (27, 51)),
    "n4i8o16_h22k1_w500k64p31,32",
    # C54: a kernel of 32 with a stride of 16.
    "n1i32o128_h128k32s16p8_w128k32s16p8",
)


@pytest.mark.parametrize("text", FAST)
def test_c50_no_reference_kernel(text):
    """Neither a naive loop nor XLA, in any direction."""
    slow = slow_kernels(problems.parse(text))
    assert not slow, "\n".join(slow)


def test_c50_equals_a_product_and_overlap_add(rng):
    """A transposed convolution as speech synthesis has it: a kernel of 1024, a stride of 256."""
    x, w = draw(rng, 1, 1026, 224), draw(rng, 1026, 1, 1024)
    y = jax.jit(
        lambda x, w: jcc.conv_transpose(x, w, strides=256, padding=0, dimension_numbers=("NCW", "OIW", "NCW"))
    )(x, w)
    frames = x[0].T.astype(np.float64) @ w[:, 0]
    wanted = np.zeros(58112)
    for i, frame in enumerate(frames):
        wanted[256 * i : 256 * i + 1024] += frame
    harness.assert_equal(y, wanted.astype(np.float32)[None, None])


@pytest.mark.parametrize("patched", [True, False], ids=["patched", "ours"])
def test_c51_channels_first_in_a_loop(patched, rng):
    """The same kernel inside of a loop as outside, and the value of two calls."""
    x, w = draw(rng, 1, 256, 256, largest=1), draw(rng, 256, 256, 1, largest=1)
    layout = ("NCW", "OIW", "NCW")
    conv = functools.partial(jcc.conv, dimension_numbers=layout)
    if patched:
        conv = functools.partial(lax.conv_general_dilated, window_strides=(1,), padding="SAME")

    def looped(x, w):
        return lax.fori_loop(0, 2, lambda _, x: conv(x, w), x)

    matrix = w[:, :, 0].astype(np.int64)
    wanted = (matrix @ (matrix @ x[0].astype(np.int64))).astype(np.float32)[None]
    with jcc.patch_jax():  # the other one takes no notice
        text = jax.jit(looped).lower(x, w).as_text()
        harness.assert_equal(jax.jit(looped)(x, w), wanted)
    assert text.count(f"@{jcc.CUSTOM_CALL_TARGETS[0]}(") == 1
    assert "stablehlo.convolution" not in text


def of_samples(patched):
    """The gradient by the kernel of each sample's own loss."""
    conv = jcc.conv
    if patched:
        conv = functools.partial(
            lax.conv_general_dilated,
            window_strides=(1, 1),
            padding="SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
    return jax.vmap(jax.grad(lambda w, x: jnp.sum(conv(x[None], w) ** 2)), (None, 0))


@pytest.mark.parametrize("patched", [True, False], ids=["patched", "ours"])
def test_c52_the_program_does_not_grow_with_the_samples(patched):
    """One convolution and one gradient, not one for each sample; and hardly a line of text more."""
    w, counts, lines = jax.ShapeDtypeStruct((3, 3, 8, 16), np.float32), [], []
    with jcc.patch_jax():
        for samples in (8, 64, 512):
            x = jax.ShapeDtypeStruct((samples, 16, 16, 8), np.float32)
            text = jax.jit(of_samples(patched)).lower(w, x).as_text()
            counts.append(harness.counts(text))
            lines.append(len(text.splitlines()))
    assert counts == [(2, 0)] * 3
    assert max(lines) == min(lines)


@pytest.mark.parametrize("patched", [True, False], ids=["patched", "ours"])
@pytest.mark.parametrize(
    ("x_shape", "w_shape"), [((32, 16, 16, 8), (3, 3, 8, 16)), ((300, 4, 4, 1), (2, 2, 1, 3))]
)
def test_c52_gradients_of_samples(x_shape, w_shape, patched, rng):
    """Those of a loop over the samples; the second are 300 tiny images."""
    x, w = draw(rng, *x_shape, largest=2), draw(rng, *w_shape, largest=2)
    with jcc.patch_jax():
        got = jax.jit(of_samples(patched))(w, x)
    k = w_shape[0]
    geometry = ((1, 1), [((k - 1) // 2, k // 2)] * 2, (1, 1))
    w_logical = w.transpose(3, 2, 0, 1)
    for sample, gradient in zip(x.transpose(0, 3, 1, 2)[:, None], got, strict=True):
        y = reference.conv(sample, w_logical, *geometry)
        dw = reference.conv_dw(sample, 2 * y, w_shape[:2], *geometry)
        harness.assert_equal(gradient, dw.transpose(2, 3, 1, 0).astype(np.float32))


@pytest.mark.parametrize("text", ["g64_n1i64o64_h56k27p13_w56k27p13", "n2i3o8_h40k17p8_w40k17p8"])
def test_c53_wide_kernel_gradients_are_no_matrix_product(text, native_missing):
    """Whose copies of the input, one for each tap, take ten times as long as the convolution."""
    if native_missing:
        pytest.skip(native_missing)
    problem = problems.parse(text)
    found = jcc.explain(
        harness.function("conv_backward_filter", problem), *harness.operands("conv_backward_filter", problem)
    )
    assert found[0].kernel.name.split()[0] in ("2x", "3x")
    assert "gemm" not in found[0].kernel.name


def correlated(x, w, method):
    """The SAME correlation of two images in float64."""
    full = scipy.signal.correlate(x.astype(np.float64), w.astype(np.float64), method=method)
    first = w.shape[0] - 1 - (w.shape[0] - 1) // 2  # SAME has the larger pad high
    return full[first : first + x.shape[0], first : first + x.shape[1]]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_c53_one_channel_is_computed_in_double(dtype, onednn, rng):
    """By XLA, as explain says: a large float32 filter, and its gradients, are float64's rounded once."""
    dtype = jnp.dtype(dtype)
    x, v = (rng.normal(size=(60, 60)).astype(dtype) for _ in range(2))
    w = rng.normal(size=(59, 59)).astype(dtype)
    arguments = (x[None, :, :, None], w[:, :, None, None], v[None, :, :, None])

    def results(x, w, v):
        y, vjp = jax.vjp(jcc.conv, x, w)
        return y, *vjp(v)

    padded = np.pad(x.astype(np.float64), 29)
    wanted = (
        correlated(x, w, "direct"),
        correlated(v, w[::-1, ::-1], "direct"),
        scipy.signal.correlate(padded, v.astype(np.float64), mode="valid", method="direct"),
    )
    assert all("float64" in str(e) for e in jcc.explain(results, *arguments))
    with jcc.options(backend="native"):
        assert all(e.kernel.backend == "onednn" for e in jcc.explain(jcc.conv, *arguments[:2]))
    ulp = float(jnp.finfo(dtype).eps)
    for got, exact in zip(jax.jit(results)(*arguments), wanted, strict=True):
        assert got.dtype == dtype
        got = np.asarray(got, np.float64).reshape(exact.shape)
        np.testing.assert_allclose(got, exact, rtol=ulp, atol=1e-12)


def test_c53_double_where_jax_has_none(onednn):
    """Without `jax_enable_x64`, as most people have it; transformed, in a loop, and eagerly."""
    code = """
import jax, jax.numpy as jnp, numpy as np
import jax_cudnn_conv as jcc
rng = np.random.default_rng(0)
x, w = rng.integers(-1, 2, (2, 60, 60, 1)), rng.integers(-1, 2, (59, 59, 1, 1))
x, w = x.astype(np.float32), w.astype(np.float32)
assert "float64" in str(jcc.explain(jcc.conv, x, w)[0])
wanted = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
loop = lambda x, w: jax.lax.fori_loop(0, 2, lambda i, y: jcc.conv(x, w), jnp.zeros_like(x))
mapped = lambda x, w: jax.vmap(jcc.conv, (0, None))(x[:, None], w)[:, 0]
for function in (jcc.conv, jax.jit(jcc.conv), jax.jit(loop), jax.jit(mapped)):
    got = function(x, w)
    assert got.dtype == jnp.float32
    np.testing.assert_array_equal(got, wanted)
assert jnp.ones(1, "float64").dtype == jnp.float32
"""
    harness.python("-c", code, JAX_ENABLE_X64="0")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("extent", "k"), [(128, 5), (128, 16), (128, 33), (128, 65), (60, 60)])
def test_c53_large_kernels(extent, k, dtype, rng):
    """Filters of one channel, up to the image's own size, equal SciPy's by FFT in float64.

    Elements are -1, 0 or 1, so that rounding its result to integers makes it exact.
    """
    x, w = draw(rng, extent, extent, largest=1), draw(rng, k, k, largest=1)
    wanted = np.rint(correlated(x, w, "fft")).astype(dtype)
    y = jax.jit(jcc.conv)(x[None, :, :, None].astype(dtype), w[:, :, None, None].astype(dtype))
    harness.assert_equal(y[0, :, :, 0], wanted)
