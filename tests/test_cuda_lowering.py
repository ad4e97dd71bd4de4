"""Programs for CUDA, lowered here where there is neither a GPU nor, if it comes to that, cuDNN."""

import re

import harness
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from jax import export

import jax_cudnn_conv as jcc

ALLOWED = [export.DisabledSafetyCheck.custom_call(name) for name in jcc.CUSTOM_CALL_TARGETS]
X, W = jnp.ones((2, 9, 8, 6), jnp.float32), jnp.ones((3, 3, 3, 4), jnp.float32)


def module(function, *arguments, platform="cuda"):
    exported = export.export(jax.jit(function), platforms=[platform], disabled_checks=ALLOWED)(*arguments)
    return exported.mlir_module()


def calls(text):
    """The custom calls of ours, in their order."""
    return re.findall(r"custom_call @jax_cudnn_conv_(\w+)_v1", text)


def conv(x, w, **keywords):
    return jcc.conv(x, w, strides=2, groups=2, **keywords)


def test_each_direction_is_one_call():
    assert calls(module(conv, X, W)) == ["cudnn_fwd"]
    loss = lambda x, w: (conv(x, w) ** 2).sum()  # noqa: E731
    assert sorted(calls(module(jax.grad(loss, (0, 1)), X, W))) == ["cudnn_dgrad", "cudnn_fwd", "cudnn_wgrad"]
    deconv = lambda y, w: jcc.conv_transpose(y, w, strides=2)  # noqa: E731
    assert calls(module(deconv, jnp.ones((1, 4, 4, 8)), jnp.ones((2, 2, 3, 8)))) == ["cudnn_dgrad"]


def test_attributes():
    with jcc.options(autotune="limited", workspace_limit=12345, deterministic=True):
        text = module(lambda x, w: conv(x, w, padding=((1, 2), (0, 3)), precision="highest"), X, W)
    for attribute in (
        r"allow_narrow = false",
        r"autotune = 1 : i64",
        r"deterministic = true",
        r"groups = 2 : i64",
        r"pad_low = dense<\[1, 0\]> : tensor<2xi64>",
        r"strides = dense<2> : tensor<2xi64>",
        r"workspace_limit = 12345 : i64",
        r"x_dims = dense<\[0, 3, 1, 2\]> : tensor<4xi64>",
        r"w_dims = dense<\[3, 2, 0, 1\]> : tensor<4xi64>",
    ):
        assert re.search(attribute, text), (attribute, text)


def test_patched_jax():
    """Value and gradients of `lax.conv`, one call each."""
    x, w = jnp.ones((2, 4, 9, 8), jnp.float32), jnp.ones((6, 4, 3, 3), jnp.float32)
    loss = lambda x, w: (jax.lax.conv(x, w, (2, 2), "SAME") ** 2).sum()  # noqa: E731
    with jcc.patch_jax():
        text = module(jax.value_and_grad(loss, (0, 1)), x, w)
    assert sorted(calls(text)) == ["cudnn_dgrad", "cudnn_fwd", "cudnn_wgrad"]
    assert "stablehlo.convolution" not in text


def test_no_transpose_for_any_layout():
    x, w = jnp.ones((9, 2, 6, 8), jnp.float32), jnp.ones((4, 3, 3, 3), jnp.float32)
    text = module(lambda x, w: jcc.conv(x, w, groups=2, dimension_numbers=("HNCW", "OHIW", "NWCH")), x, w)
    assert calls(text) == ["cudnn_fwd"]
    assert "stablehlo.transpose" not in text


def test_bias_and_activation_are_part_of_the_call():
    b = jnp.ones(4, jnp.float32)
    text = module(lambda x, w, b: conv(x, w, bias=b, activation="relu"), X, W, b)
    assert calls(text) == ["cudnn_fwd"]
    assert "relu = true" in text
    assert "stablehlo.add" not in text
    assert "stablehlo.maximum" not in text
    only = module(lambda x, w: conv(x, w, activation="relu"), X, W)
    assert calls(only) == ["cudnn_fwd"]
    assert "stablehlo.maximum" in only  # cuDNN has no engine for that alone


def test_casts_around_the_call():
    """Widening results in f32, f64 and 16 bits as they are."""
    half = X.astype(jnp.bfloat16), W.astype(jnp.bfloat16)
    text = module(lambda x, w: conv(x, w, preferred_element_type=jnp.float32), *half)
    assert re.search(r"custom_call @jax_cudnn_conv_cudnn_fwd_v1.*-> tensor<2x5x4x4xf32>", text)
    assert re.search(r"fwd_v1.*-> tensor<2x5x4x4xbf16>", module(conv, *half))
    wide = X.astype(jnp.float64), W.astype(jnp.float64)
    assert re.search(r"fwd_v1.*-> tensor<2x5x4x4xf64>", module(conv, *wide))


@pytest.mark.parametrize("text", problems.CURATED["crop"])
def test_negative_pads_never_reach_cudnn(text):
    problem = problems.parse(text)
    for name in ("conv", "conv_backward_data", "conv_backward_filter"):
        program = module(harness.function(name, problem), *harness.operands(name, problem))
        for pads in re.findall(r"pad_low = dense<\[?([^\]>]*)", program):
            assert "-" not in pads, program


@pytest.mark.parametrize("platform", ["rocm", "tpu"])
def test_other_platforms_take_xlas_convolution(platform):
    text = module(jax.grad(lambda x, w: conv(x, w).sum(), (0, 1)), X, W, platform=platform)
    assert calls(text) == []
    assert "stablehlo.convolution" in text
    b = jnp.ones(4, jnp.float32)
    text = module(lambda x, w, b: conv(x, w, bias=b, activation="relu"), X, W, b, platform=platform)
    assert calls(text) == []


def test_one_program_for_cpu_and_cuda():
    exported = export.export(jax.jit(conv), platforms=["cpu", "cuda"], disabled_checks=ALLOWED)(X, W)
    assert set(calls(exported.mlir_module())) == {"onednn_fwd", "cudnn_fwd"}
    harness.assert_equal(exported.call(X, W), conv(X, W))


def test_symbolic_shapes():
    n, h = export.symbolic_shape("n, h", constraints=["h >= 5"])
    spec = jax.ShapeDtypeStruct((n, h, 8, 6), jnp.float32)
    text = module(jax.grad(lambda x, w: conv(x, w, padding=1).sum(), (0, 1)), spec, W)
    assert sorted(calls(text)) == ["cudnn_dgrad", "cudnn_wgrad"]


def test_xla_on_request():
    with jcc.options(backend="xla"):
        assert calls(module(conv, X, W)) == []


@pytest.mark.parametrize("dtype", [np.int32, np.complex64])
def test_dtypes_that_cudnn_lacks(dtype):
    assert calls(module(conv, X.astype(dtype), W.astype(dtype))) == []
