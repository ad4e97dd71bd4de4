"""Every function on every problem, on each backend: equal to the oracle, to the last bit."""

import harness
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
import reference

import jax_cudnn_conv as jcc

PROBLEMS = problems.ALL


def test_values(problem, backend):
    harness.check_every_function(problem, backend)


@pytest.mark.parametrize("text", problems.FEW)
def test_values_eager(text, backend):
    harness.check_every_function(problems.parse(text), backend, jit=False)


@pytest.mark.parametrize("text", problems.OTHER_RANKS)
def test_values_without_a_native_kernel(text):
    harness.check_every_function(problems.parse(text), "auto")


def test_a_gradient_at_which_xla_gives_up():
    """XLA itself ends the process on the plain form of this data gradient (seen in jaxlib 0.10.2).

    An axis with a kernel and a stride of 2 and pads of 1, beside one on which the kernel is larger than y.
    """
    problems_ = ("f64_n1i1o1_h2k3s2p1,4d3_w9k2s2p2", "f64_n1i2o3_h2k3s2p1,4d3_w10k2s2p1")
    harness.python("child.py", "values", *problems_, JAX_ENABLE_X64="1")


@pytest.mark.parametrize("text", ["g2_n2i4o6_h7k3s2p1_w9k2p1,0", "n2i3o5_w9k4s2p3,1"])
def test_adjoint_identity(text, backend):
    """<conv(x, w), v> = <x, dx(v, w)> = <w, dw(x, v)>, of the library's own results."""
    problem = problems.parse(text)
    known = harness.arrays(problem)
    with jcc.options(backend=backend):
        inner = {
            float(
                jnp.vdot(
                    harness.function(name, problem)(*harness.operands(name, problem)),
                    known[harness.ROLES[name][2]],
                )
            )
            for name in harness.ROLES
        }
    assert len(inner) == 1


@pytest.mark.parametrize("text", problems.FEW)
def test_agrees_with_lax_in_float64(text):
    problem = problems.parse("f64_" + text)

    def conv(x, w):
        return jax.lax.conv_general_dilated(
            x,
            w,
            problem.strides,
            problem.pads,
            rhs_dilation=problem.dilation,
            dimension_numbers=problem.dimension_numbers,
            feature_group_count=problem.groups,
        )

    rng = np.random.default_rng(1)
    known = {role: rng.normal(size=a.shape) for role, a in harness.arrays(problem).items()}
    y, vjp = jax.vjp(conv, known["x"], known["w"])
    expected = dict(zip("yxw", (y, *vjp(known["y"])), strict=True))
    for name, (first, second, result) in harness.ROLES.items():
        actual = harness.function(name, problem)(known[first], known[second])
        np.testing.assert_allclose(actual, expected[result], rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("padding", ["SAME", "SAME_LOWER", "VALID", "same", "valid", "same_lower"])
@pytest.mark.parametrize(
    ("k", "s", "d"), [((4, 3), (1, 2), (1, 1)), ((2, 5), (3, 1), (2, 1)), ((3, 2), (2, 3), (2, 4))]
)
def test_string_padding(padding, k, s, d, backend, rng):
    x, w = (rng.integers(-4, 5, shape).astype(np.float32) for shape in [(2, 3, 7, 10), (5, 3, *k)])
    pads = [(0, 0), (0, 0)]
    if padding.upper() != "VALID":
        pads = [
            reference.same_pads(*a, lower="LOWER" in padding.upper())
            for a in zip(x.shape[2:], k, s, d, strict=True)
        ]
    with jcc.options(backend=backend):
        y = jax.jit(
            lambda x, w: jcc.conv(
                x, w, strides=s, padding=padding, dilation=d, dimension_numbers=("NCHW", "OIHW", "NCHW")
            )
        )(x, w)
    harness.assert_equal(y, reference.conv(x, w, s, pads, d).astype(np.float32))


def test_causal_pads_equal_a_longer_input(backend, rng):
    """C10: pads on one side only are zeros put before x."""
    x, w = (rng.integers(-4, 5, shape).astype(np.float32) for shape in [(2, 9, 3), (4, 3, 5)])
    with jcc.options(backend=backend):
        padded = jcc.conv(x, w, padding=[(6, 0)], dilation=2)
        longer = jcc.conv(jnp.pad(x, [(0, 0), (6, 0), (0, 0)]), w, padding=0, dilation=2)
    harness.assert_equal(padded, longer)
    assert padded.shape == (2, 9, 5)


def test_one_dimension_equals_two(backend, rng):
    """C12: a 1-D convolution is a 2-D one with an axis of extent 1 in either place."""
    x, w = (rng.integers(-4, 5, shape).astype(np.float32) for shape in [(2, 11, 3), (2, 3, 5)])
    geometry = {"strides": (2,), "padding": [(3, 1)], "dilation": (3,)}
    with jcc.options(backend=backend):
        y = jcc.conv(x, w, **geometry)
        before = {name: [(0, 0) if name == "padding" else 1, *value] for name, value in geometry.items()}
        after = {name: [*value, (0, 0) if name == "padding" else 1] for name, value in geometry.items()}
        harness.assert_equal(jcc.conv(x[:, None], w[None], **before)[:, 0], y)
        harness.assert_equal(jcc.conv(x[:, :, None], w[:, None], **after)[:, :, 0], y)


def test_cropped_column_reads_nothing(backend):
    """C11: a crop of five beside a pad of one: the padded column is zero (in XLA's f32 kernel it is not)."""
    x = (100 * np.arange(15)[:, None, None] + 10 * np.arange(6)[:, None] + np.arange(8)).astype(np.float32)
    with jcc.options(backend=backend):
        y = jax.jit(lambda x, w: jcc.conv(x, w, padding=[(0, 0), (-5, 1)]))(
            x[None], np.eye(8, dtype=np.float32)[None, None]
        )
    assert y.shape == (1, 15, 2, 8)
    harness.assert_equal(y[0, :, 0], x[:, 5])
    assert not np.any(y[:, :, 1])


@pytest.mark.parametrize("activation", [None, "relu"])
def test_bias_and_activation(activation, backend, rng):
    """The result equals the unfused composition, for both functions."""
    x, w = (rng.integers(-4, 5, shape).astype(np.float32) for shape in [(2, 9, 3), (3, 3, 5)])
    b = rng.integers(-40, 41, 5).astype(np.float32)
    v, c = rng.integers(-4, 5, (2, 4, 5)).astype(np.float32), b[:3]

    def after(y):
        return jnp.maximum(y, 0) if activation else y

    with jcc.options(backend=backend):
        harness.assert_equal(
            jcc.conv(x, w, strides=2, bias=b, activation=activation), after(jcc.conv(x, w, strides=2) + b)
        )
        harness.assert_equal(
            jcc.conv_transpose(v, w, strides=2, bias=c, activation=activation),
            after(jcc.conv_transpose(v, w, strides=2) + c),
        )
