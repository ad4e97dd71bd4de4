"""cuDNN has a plan for every problem, dtype, direction and architecture, whatever the options leave out."""

import dataclasses

import harness
import jax
import jax.numpy as jnp
import problems
import pytest

import jax_cudnn_conv as jcc
from jax_cudnn_conv import _devices

DTYPES = ("f32", "f16", "bf16", "f64")
STRICT = {"deterministic": True, "workspace_limit": 0}


def every_convolution(problem):
    """The three directions, and the forward one with what cuDNN adds to it."""

    def call(x, w, y):
        conv = harness.function("conv", problem)
        return (
            conv(x, w),
            harness.function("conv_backward_data", problem)(y, w),
            harness.function("conv_backward_filter", problem)(x, y),
            conv(x, w, bias=jnp.zeros(problem.o, x.dtype), activation="relu"),
        )

    return call


def explained(problem, device):
    a = harness.arrays(problem)
    return jcc.explain(every_convolution(problem), a["x"], a["w"], a["y"], device=device)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
@pytest.mark.parametrize("device", _devices.DESCRIBED)
def test_every_problem_has_a_plan(device, strict, dtype):
    precision = "highest" if strict else "default"
    for text in problems.ALL:
        problem = dataclasses.replace(problems.parse(text), dtype=dtype)
        with jcc.options(**STRICT if strict else {}), jax.default_matmul_precision(precision):
            explanations = explained(problem, device)
        assert len(explanations) == 4
        for explanation in explanations:
            kernel = explanation.kernel
            assert kernel.backend == "cudnn", f"{text}: {explanation}"
            compute = "f32" if (device, dtype) == ("sm_75", "bf16") else dtype
            assert kernel.dtype == problems.DTYPES[compute], f"{text}: {explanation}"
            if kernel.name == "zero":
                assert text in problems.CURATED["crop"], explanation
                continue
            assert kernel.workspace <= (0 if strict else 1 << 30), explanation
            assert "compiled" not in kernel.notes, explanation
            if strict:
                assert "not deterministic" not in kernel.notes, explanation
            if strict and dtype == "f32":
                assert kernel.notes == "", explanation  # TF32 would say "tensor cores"


def test_the_bias_is_fused():
    """But not where all of x is cropped away, and there is nothing left to convolve."""
    for text in problems.ALL:
        fused = [e for e in explained(problems.parse(text), "sm_90") if e.problem.endswith("_bias_relu")]
        assert len(fused) == (text not in ("n1i2o3_w3k1p-5,9", "n1i2o3_h4k2p-3,6_w5k3p8,-6")), text


def test_an_old_gpu_has_no_bfloat16():
    """What the choice of f32 on sm_75 rests on: cuDNN says so itself."""
    module = _cudnn()
    gpu = _devices.described("sm_75", module)
    x, w, y = (1, 5, 2), (3, 2, 4), (1, 3, 4)
    layout = {"x_dims": (0, 2, 1), "w_dims": (2, 1, 0), "y_dims": (0, 2, 1)}
    name, _, _, reason = module.describe(
        "y",
        [x, w, y],
        ["bfloat16"] * 3,
        **layout,
        strides=(1,),
        dilation=(1,),
        pad_low=(0,),
        groups=1,
        allow_narrow=False,
        bias=False,
        relu=False,
        deterministic=False,
        workspace_limit=0,
        device=gpu.description,
    )
    assert name == ""
    assert "bf16" in reason


def _cudnn():
    from jax_cudnn_conv import _targets

    return _targets.cudnn()


def test_precision_decides_about_tf32():
    """f32 runs on tensor cores unless more is asked for; 16-bit operands fit into TF32 as they are."""
    x, w = jnp.zeros((8, 28, 28, 64), jnp.float32), jnp.zeros((3, 3, 64, 64), jnp.float32)

    def notes(x, w, **keywords):
        def loss(x, w):
            return jcc.conv(x, w, **keywords).astype(jnp.float32).sum()

        return [e.kernel.notes for e in jcc.explain(jax.grad(loss, (0, 1)), x, w, device="sm_90")]

    assert all("tensor cores" in n for n in notes(x, w))
    preset = jax.lax.DotAlgorithmPreset
    for exact in ("highest", "high", jax.lax.Precision.HIGHEST, preset.F32_F32_F32):
        assert not any("tensor cores" in n for n in notes(x, w, precision=exact)), exact
    assert all("tensor cores" in n for n in notes(x, w, precision=preset.TF32_TF32_F32))
    with jax.default_matmul_precision("highest"):
        assert not any("tensor cores" in n for n in notes(x, w))
    narrow = x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)
    wide = notes(*narrow, precision="highest", preferred_element_type=jnp.float32)
    assert "tensor cores" in wide[0]  # the forward one, from bf16 to f32


def test_options_filter_plans():
    x, y = jnp.zeros((8, 28, 28, 64), jnp.float32), jnp.zeros((8, 28, 28, 64), jnp.float32)

    def kernel(**options):
        def f(x, y):
            return jcc.conv_backward_filter(x, y, kernel_shape=(3, 3, 64, 64))

        with jcc.options(**options):
            return jcc.explain(f, x, y, device="sm_75")[0].kernel

    assert "not deterministic" in kernel().notes
    assert "not deterministic" not in kernel(deterministic=True).notes
    limits = [kernel(workspace_limit=limit).workspace for limit in (0, 1 << 20)]
    assert limits[0] == 0
    assert limits[1] <= 1 << 20


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"dtype": "i8"}, "lacks dtype int8"),
        ({"dtype": "i32"}, "lacks dtype int32"),
        ({"dtype": "c64"}, "lacks dtype complex64"),
        ({"text": "n3i4o5"}, "1 to 3 axes, not 0"),
        ({"text": problems.OTHER_RANKS[2]}, "1 to 3 axes, not 4"),
    ],
)
def test_what_falls_back_says_why(arguments, reason):
    problem = problems.parse(arguments.get("text", "n2i3o5_w9k3"))
    problem = dataclasses.replace(problem, dtype=arguments.get("dtype", "f32"))
    x, w = harness.operands("conv", problem)
    explanation = jcc.explain(harness.function("conv", problem), x, w, device="sm_90")[0]
    assert explanation.kernel.backend == "xla"
    assert reason in explanation.kernel.reason
    with jcc.options(backend="native"), pytest.raises(NotImplementedError, match=reason):
        jax.jit(harness.function("conv", problem))(x, w)


def test_common_strides_have_even_pads():
    """SAME under a stride of 2 wants (0, 1), and padding=1 leaves a remainder: neither ends on engine 0."""
    x, w = jnp.zeros((16, 56, 56, 64), jnp.float32), jnp.zeros((3, 3, 64, 128), jnp.float32)
    for device in _devices.DESCRIBED:
        for padding in ("SAME", 1):

            def loss(x, w, padding=padding):
                return (jcc.conv(x, w, strides=2, padding=padding) ** 2).sum()

            for explanation in jcc.explain(jax.grad(loss, (0, 1)), x, w, device=device):
                assert explanation.kernel.name != "eng0", (device, padding, explanation)


def test_unknown_device():
    with pytest.raises(ValueError, match="device must be one of sm_75, .*; got 'sm_50'"):
        jcc.explain(jcc.conv, jnp.zeros((1, 4, 1)), jnp.zeros((2, 1, 1)), device="sm_50")
