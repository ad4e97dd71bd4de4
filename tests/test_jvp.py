"""Forward-mode derivatives: every function is linear in each operand."""

import harness
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from jax.test_util import check_grads

import jax_cudnn_conv as jcc

PROBLEMS = problems.FEW


@pytest.fixture(params=harness.ROLES)
def name(request):
    return request.param


def test_jvp_is_the_sum_of_both_parts(problem, name, backend):
    """f(a', b) + f(a, b'), exactly."""
    f = harness.function(name, problem)
    (a, b), (ta, tb) = (harness.operands(name, problem, seed) for seed in (0, 1))
    with jcc.options(backend=backend):
        out, tangent = jax.jit(lambda *args: jax.jvp(f, args[:2], args[2:]))(a, b, ta, tb)
    harness.assert_equal(out, harness.oracle(name, problem, a, b))
    harness.assert_equal(tangent, harness.oracle(name, problem, ta, b) + harness.oracle(name, problem, a, tb))


@pytest.mark.parametrize("text", problems.FEW[:2])
def test_c16_a_zero_tangent_costs_nothing(text, name):
    """One operand is a constant: its part is neither computed nor needed."""
    problem = problems.parse(text)
    f = harness.function(name, problem)
    (a, b), (ta, tb) = (harness.operands(name, problem, seed) for seed in (0, 1))
    only_a = jax.jvp(lambda a: f(a, b), (a,), (ta,))[1]
    only_b = jax.jvp(lambda b: f(a, b), (b,), (tb,))[1]
    harness.assert_equal(only_a, harness.oracle(name, problem, ta, b))
    harness.assert_equal(only_b, harness.oracle(name, problem, a, tb))
    count = harness.count_primitives(lambda a, ta: jax.jvp(lambda a: f(a, b), (a,), (ta,)), a, ta)
    assert list(count.values()) == [2]


def test_linearize_keeps_the_direction(name, backend):
    """The linear part of each function, applied to several tangents."""
    problem = problems.parse("g2_n1i2o4_h5k2s2p1,0_w6k3p0,2d2")
    f = harness.function(name, problem)
    a, b = harness.operands(name, problem)
    with jcc.options(backend=backend):
        _, linear = jax.linearize(f, a, b)
        for seed in (1, 2):
            ta, tb = harness.operands(name, problem, seed)
            expected = harness.oracle(name, problem, ta, b) + harness.oracle(name, problem, a, tb)
            harness.assert_equal(linear(ta, tb), expected)


@pytest.mark.parametrize("text", problems.FEW[1:4])
def test_forward_derivatives_to_order_two(text, name, backend, rng):
    """check_grads against finite differences; a bilinear map has exact ones with a step of one."""
    problem = problems.parse(text)
    a, b = (jnp.asarray(rng.normal(size=o.shape), jnp.float32) for o in harness.operands(name, problem))
    with jcc.options(backend=backend):
        f = jax.jit(harness.function(name, problem))
        check_grads(f, (a, b), order=2, modes=["fwd"], eps=1, atol=2e-3, rtol=2e-3)


def test_relu_and_bias_tangents(backend, rng):
    x, w = (rng.integers(-4, 5, shape).astype(np.float32) for shape in [(2, 9, 3), (3, 3, 5)])
    b = np.arange(-2, 3, dtype=np.float32)
    tangents = tuple(rng.integers(-4, 5, a.shape).astype(np.float32) for a in (x, w, b))
    with jcc.options(backend=backend):
        fused = jax.jvp(lambda x, w, b: jcc.conv(x, w, bias=b, activation="relu"), (x, w, b), tangents)
        plain = jax.jvp(lambda x, w, b: jax.nn.relu(jcc.conv(x, w) + b), (x, w, b), tangents)
    harness.assert_equal(fused[0], plain[0])
    harness.assert_equal(fused[1], plain[1])
