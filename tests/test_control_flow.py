"""Inside scan, while_loop, cond and fori_loop, eagerly and under jit."""

import harness
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import jax_cudnn_conv as jcc

# Keeps its shape, so that it can be applied again and again; its numbers stay below 2**24 for three steps.
PROBLEM = problems.parse("g2_n2i4o4_h3k3p1_w5k2p1,0")
STEPS = 3


@pytest.fixture
def once():
    return harness.function("conv", PROBLEM)


@pytest.fixture
def arrays():
    x, w = harness.operands("conv", PROBLEM)
    return x, np.sign(w), harness.arrays(PROBLEM, 1)["y"]


def unrolled(x, w, v):
    """The oracle's value after each step, and the gradients of <last value, v>."""
    values = [x]
    for _ in range(STEPS):
        values.append(harness.third(PROBLEM, "y", x=values[-1], w=w))
    dw = np.zeros_like(w)
    for value in reversed(values[:-1]):
        dw += harness.third(PROBLEM, "w", x=value, y=v)
        v = harness.third(PROBLEM, "x", y=v, w=w)
    return values[1:], v, dw


@pytest.mark.parametrize("jit", [True, False], ids=["jit", "eager"])
@pytest.mark.parametrize("remat", [True, False], ids=["checkpoint", "plain"])
def test_scan_and_its_gradients(jit, remat, backend, once, arrays):
    x, w, v = arrays

    def last(x, w):
        def body(carry, _):
            y = once(carry, w)
            return y, y

        carry, ys = jax.lax.scan(jax.checkpoint(body) if remat else body, x, None, length=STEPS)
        return jnp.vdot(carry, v), ys

    call = jax.value_and_grad(last, (0, 1), has_aux=True)
    with jcc.options(backend=backend):
        (_, ys), (dx, dw) = (jax.jit(call) if jit else call)(x, w)
    values, expected_dx, expected_dw = unrolled(x, w, v)
    harness.assert_equal(ys, np.stack(values))
    harness.assert_equal(dx, expected_dx)
    harness.assert_equal(dw, expected_dw)


def test_scan_over_kernels(backend, once, arrays):
    """A kernel per step, and forward derivatives."""
    x, w, _ = arrays
    kernels = np.stack([w, -w, np.roll(w, 1, 0)])

    def last(x, kernels):
        return jax.lax.scan(lambda carry, w: (once(carry, w), None), x, kernels)[0]

    with jcc.options(backend=backend):
        out, tangent = jax.jit(lambda x, k, t: jax.jvp(lambda x: last(x, k), (x,), (t,)))(x, kernels, 2 * x)
    expected = x
    for kernel in kernels:
        expected = harness.third(PROBLEM, "y", x=expected, w=kernel)
    harness.assert_equal(out, expected)
    harness.assert_equal(tangent, 2 * expected)


def test_while_loop(backend, once, arrays):
    x, w, v = arrays
    with jcc.options(backend=backend):
        call = jax.jit(
            lambda x, w: jax.lax.while_loop(
                lambda c: c[0] < STEPS, lambda c: (c[0] + 1, once(c[1], w)), (0, x)
            )
        )
        count, y = call(x, w)
    assert count == STEPS
    harness.assert_equal(y, unrolled(x, w, v)[0][-1])


def test_fori_loop_of_gradients(backend, once, arrays):
    """Gradient and weight gradient taken inside a loop."""
    x, w, v = arrays

    def body(_, carry):
        dx, dw = jax.vjp(once, x, w)[1](v)
        return carry[0] + dx, carry[1] + dw

    with jcc.options(backend=backend):
        dx, dw = jax.jit(lambda: jax.lax.fori_loop(0, STEPS, body, (jnp.zeros_like(x), jnp.zeros_like(w))))()
    harness.assert_equal(dx, STEPS * harness.third(PROBLEM, "x", y=v, w=w))
    harness.assert_equal(dw, STEPS * harness.third(PROBLEM, "w", x=x, y=v))


@pytest.mark.parametrize("taken", [True, False])
def test_cond(taken, backend, once, arrays):
    """Each branch a different function of the library; values and gradients."""
    x, w, v = arrays
    back = harness.function("conv_backward_data", PROBLEM)

    def f(taken, x, w):
        return jax.lax.cond(taken, once, back, x, w)

    with jcc.options(backend=backend):
        out, vjp = jax.jit(lambda t, x, w: jax.vjp(lambda x, w: f(t, x, w), x, w))(taken, x, w)
        dx, dw = vjp(v)
    name = "conv" if taken else "conv_backward_data"
    first, second, result = harness.ROLES[name]
    harness.assert_equal(out, harness.oracle(name, PROBLEM, x, w))
    harness.assert_equal(dx, harness.third(PROBLEM, first, **{second: w, result: v}))
    harness.assert_equal(dw, harness.third(PROBLEM, second, **{first: x, result: v}))


def test_vmapped_cond_becomes_select(backend, once, arrays):
    x, w, _ = arrays
    xs = np.stack([x, -x])
    with jcc.options(backend=backend):
        call = jax.jit(jax.vmap(lambda t, x: jax.lax.cond(t, lambda x: once(x, w), lambda x: x, x)))
        y = call(np.array([True, False]), xs)
    harness.assert_equal(y, np.stack([harness.third(PROBLEM, "y", x=x, w=w), -x]))


@pytest.mark.parametrize("name", harness.ROLES)
def test_eager_equals_jit(name, backend, rng):
    """Bit for bit, on numbers that are not integers."""
    f = harness.function(name, PROBLEM)
    a, b = (rng.normal(size=o.shape).astype(np.float32) for o in harness.operands(name, PROBLEM))
    with jcc.options(backend=backend):
        harness.assert_equal(jax.jit(f)(a, b), f(a, b))
        with jax.disable_jit():
            harness.assert_equal(f(a, b), jax.jit(f)(a, b))


def test_two_convolutions_in_one_program(backend, rng):
    """Independent ones, which XLA may run at the same time."""
    texts = ["g2_n2i4o6_w7k3s2p1", "n2i3o5_h6k3p1_w9k3p1"]
    cases = [problems.parse(text) for text in texts]
    operands = [harness.operands("conv", problem) for problem in cases]

    def both(operands):
        return [
            harness.function("conv", problem)(*pair) for problem, pair in zip(cases, operands, strict=True)
        ]

    with jcc.options(backend=backend):
        out = jax.jit(both)(operands)
    for problem, pair, y in zip(cases, operands, out, strict=True):
        harness.assert_equal(y, harness.oracle("conv", problem, *pair))
