"""Reverse-mode derivatives of every order, and what goes with them: linear_transpose, checkpoint, hessian."""

import functools

import harness
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
from jax.test_util import check_grads

import jax_cudnn_conv as jcc

PROBLEMS = (
    *problems.FEW,
    *problems.CURATED["remainder"],
    # Grouped weight gradients: grouped with a stride, depthwise, three groups in 3-D.
    "g4_n1i4o4_h4k3s2p1_w4k3s2p1",
    "g3_n1i6o9_d4k2s4p1_h4k2s4p1_w5k2p1",
)


@pytest.fixture(params=harness.ROLES)
def name(request):
    return request.param


def cotangents(name, problem, a, b, ct):
    """The oracle's cotangents of both operands."""
    first, second, result = harness.ROLES[name]
    return (
        harness.third(problem, first, **{second: b, result: ct}),
        harness.third(problem, second, **{first: a, result: ct}),
    )


def test_cotangents(problem, backend):
    """Both cotangents of all four functions, exactly."""
    names = list(harness.ROLES)
    arguments = {name: harness.operands(name, problem) for name in names}
    cts = {name: harness.arrays(problem, 1)[harness.ROLES[name][2]] for name in names}

    def call(arguments, cts):
        return {
            name: jax.vjp(harness.function(name, problem), *arguments[name])[1](cts[name]) for name in names
        }

    with jcc.options(backend=backend):
        out = jax.jit(call)(arguments, cts)
    for name in names:
        for actual, expected in zip(
            out[name], cotangents(name, problem, *arguments[name], cts[name]), strict=True
        ):
            harness.assert_equal(actual, expected, f"{name} ({backend}); {harness.rerun(problem)}")


def test_c01_input_gradient_beyond_the_last_tap(backend):
    w = np.array([1, 2, 3, 4], np.float32)[:, None, None]
    with jcc.options(backend=backend):
        dx = jax.grad(lambda x: jcc.conv(x, w, strides=4, padding=0).sum())(np.ones((1, 11, 1), np.float32))
    assert dx[0, :, 0].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 0, 0, 0]


def test_c02_weight_gradient_has_no_extra_taps(backend):
    x = np.array([1, 10, 100, 1000, 10000, 100000], np.float32)[None, :, None]
    with jcc.options(backend=backend):
        dw = jax.grad(lambda w: jcc.conv(x, w, strides=2, padding=0).sum())(np.ones((3, 1, 1), np.float32))
    assert dw[:, 0, 0].tolist() == [101, 1010, 10100]


@pytest.mark.parametrize("text", problems.FEW[1:4])
def test_derivatives_to_order_two(text, name, backend, rng):
    """check_grads in both modes, in each operand: linear maps have exact differences with a step of one."""
    problem = problems.parse(text)
    f = harness.function(name, problem)
    a, b = (jnp.asarray(rng.normal(size=o.shape), jnp.float32) for o in harness.operands(name, problem))
    check = functools.partial(check_grads, order=2, modes=["fwd", "rev"], eps=1, atol=5e-3, rtol=5e-3)
    with jcc.options(backend=backend):
        check(jax.jit(lambda a: f(a, b)), (a,))
        check(jax.jit(lambda b: f(a, b)), (b,))


@pytest.mark.parametrize("text", problems.FEW[1:4])
def test_bilinearity_of_the_gradients(text, name, backend):
    """The gradient's own derivatives are the other functions again: exact to second order in float32."""
    problem = problems.parse(text)
    first, second, result = harness.ROLES[name]
    f = harness.function(name, problem)
    a, b = harness.operands(name, problem)
    ct = harness.arrays(problem, 1)[result]
    u, v = harness.operands(name, problem, seed=2)

    def pulled(a, b, ct):
        """<vjp(ct), (u, v)>, linear in each of a, b and ct."""
        da, db = jax.vjp(f, a, b)[1](ct)
        return jnp.vdot(da, u) + jnp.vdot(db, v)

    with jcc.options(backend=backend):
        da, db, dct = jax.jit(jax.grad(pulled, (0, 1, 2)))(a, b, ct)
        over = jax.jit(lambda t: jax.jvp(lambda b: jax.vjp(f, a, b)[1](ct)[0], (b,), (t,))[1])(v)
    harness.assert_equal(da, harness.third(problem, first, **{second: v, result: ct}), "grad of grad")
    harness.assert_equal(db, harness.third(problem, second, **{first: u, result: ct}), "grad of grad")
    harness.assert_equal(
        dct, harness.oracle(name, problem, u, b) + harness.oracle(name, problem, a, v), "grad of grad"
    )
    harness.assert_equal(over, harness.third(problem, first, **{second: v, result: ct}), "jvp of grad")


def lax_conv(x, w, groups):
    return jax.lax.conv_general_dilated(
        x, w, (2,), [(1, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=groups
    )


def ours(x, w, groups):
    return jcc.conv(x, w, strides=2, padding=[(1, 0)], groups=groups)


def ours_transpose(x, w, groups):
    return jcc.conv_transpose(x, w, strides=2, padding=[(1, 1)], output_padding=1, groups=groups)


def lax_transpose(x, w, groups):
    """The same, as the transpose of lax's convolution: the high pad lowered by the output padding."""
    shape = (x.shape[0], 2 * (x.shape[1] - 1) + w.shape[0] - 1, w.shape[1] * groups)

    def conv(y):
        return jax.lax.conv_general_dilated(
            y, w, (2,), [(1, 0)], dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=groups
        )

    return jax.linear_transpose(conv, jax.ShapeDtypeStruct(shape, x.dtype))(x)[0]


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "pair", [(ours, lax_conv), (ours_transpose, lax_transpose)], ids=["conv", "conv_transpose"]
)
def test_c14_second_derivatives_of_a_nonlinear_loss(pair, groups, rng):
    """Hessian in w, in x and mixed, jvp-of-grad and grad-of-jvp, against lax in float64 and differences."""
    x, w = rng.normal(size=(1, 7, 2)), rng.normal(size=(3, 2 // groups, 4))
    if pair[0] is ours_transpose:
        x, w = rng.normal(size=(1, 5, 4)), rng.normal(size=(3, 2 // groups, 4))
    losses = [lambda x, w, f=f: jnp.sum(jnp.tanh(f(x, w, groups)) ** 2) for f in pair]

    ours_hessian, lax_hessian = (jax.jit(jax.hessian(loss, (0, 1)))(x, w) for loss in losses)
    for actual, expected in zip(jax.tree.leaves(ours_hessian), jax.tree.leaves(lax_hessian), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-9)

    grad = jax.jit(jax.grad(losses[0], (0, 1)))
    tangent = rng.normal(size=x.shape), rng.normal(size=w.shape)
    forward_over_reverse = jax.jvp(grad, (x, w), tangent)[1]

    def directional(x, w):
        return jax.jvp(losses[0], (x, w), tangent)[1]

    reverse_over_forward = jax.grad(directional, (0, 1))(x, w)
    h = 1e-5
    ahead, behind = (grad(x + s * h * tangent[0], w + s * h * tangent[1]) for s in (1, -1))
    for a, b, plus, minus in zip(forward_over_reverse, reverse_over_forward, ahead, behind, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(a, (plus - minus) / (2 * h), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("transpose", [False, True], ids=["conv", "conv_transpose"])
def test_c16_one_gradient_at_a_time(transpose, backend, rng):
    """Asking for x, w or the bias alone gives the matching part of the full gradient."""
    function = jcc.conv_transpose if transpose else jcc.conv
    x, w, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in [(2, 6, 4), (3, 4, 4), (4,)])

    def loss(x, w, b):
        return jnp.sum(function(x, w, strides=2, bias=b) * 3)

    with jcc.options(backend=backend):
        full = jax.grad(loss, (0, 1, 2))(x, w, b)
        for i in range(3):
            harness.assert_equal(jax.grad(loss, i)(x, w, b), full[i])
            closed = [x, w, b]

            def constant_others(value, closed=closed, i=i):
                return loss(*closed[:i], value, *closed[i + 1 :])

            harness.assert_equal(jax.jit(jax.grad(constant_others))(closed[i]), full[i])


def test_c16_no_gradient_that_was_not_asked_for(rng):
    x, w, b = (rng.normal(size=shape).astype(np.float32) for shape in [(2, 6, 4), (3, 4, 4), (4,)])

    def loss(x, w, b, function):
        return jnp.sum(function(x, w, strides=2, bias=b) ** 2)

    def counts(function):
        return [
            harness.count_primitives(jax.grad(functools.partial(loss, function=function), i), x, w, b)
            for i in range(3)
        ]

    assert counts(jcc.conv) == [
        {"conv_fwd": 1, "conv_dgrad": 1},
        {"conv_fwd": 1, "conv_wgrad": 1},
        {"conv_fwd": 1},
    ]
    assert counts(jcc.conv_transpose) == [
        {"conv_fwd": 1, "conv_dgrad": 1},
        {"conv_dgrad": 1, "conv_wgrad": 1},
        {"conv_dgrad": 1},
    ]


@pytest.mark.parametrize("text", problems.FEW[1:5])
def test_linear_transpose(text, name, backend):
    """In either operand."""
    problem = problems.parse(text)
    f = harness.function(name, problem)
    a, b = harness.operands(name, problem)
    ct = harness.arrays(problem, 1)[harness.ROLES[name][2]]
    with jcc.options(backend=backend):
        (da,) = jax.linear_transpose(lambda a: f(a, b), a)(ct)
        (db,) = jax.linear_transpose(lambda b: f(a, b), b)(ct)
    for actual, expected in zip((da, db), cotangents(name, problem, a, b, ct), strict=True):
        harness.assert_equal(actual, expected)


def test_transpose_of_the_transpose(name, backend):
    """linear_transpose twice is the function itself."""
    problem = problems.parse("g2_n2i4o6_w7k3s2p1")
    f = harness.function(name, problem)
    a, b = harness.operands(name, problem)
    with jcc.options(backend=backend):
        once = jax.linear_transpose(lambda a: f(a, b), a)
        twice = jax.linear_transpose(lambda ct: once(ct)[0], f(a, b))
        harness.assert_equal(twice(a)[0], harness.oracle(name, problem, a, b))


@pytest.mark.parametrize("policy", [None, "dots_saveable", "nothing_saveable"])
def test_checkpoint(policy, name, backend):
    """Rematerialised gradients are the same."""
    problem = problems.parse("g2_n1i2o4_h5k2s2p1,0_w6k3p0,2d2")
    f = harness.function(name, problem)
    a, b = harness.operands(name, problem)
    policy = policy and getattr(jax.checkpoint_policies, policy)

    def loss(f, a, b):
        return jnp.sum(f(a, b) ** 2)

    with jcc.options(backend=backend):
        plain = jax.jit(jax.grad(functools.partial(loss, f), (0, 1)))(a, b)
        remade = jax.jit(jax.grad(functools.partial(loss, jax.checkpoint(f, policy=policy)), (0, 1)))(a, b)
    for actual, expected in zip(remade, plain, strict=True):
        harness.assert_equal(actual, expected)


def test_relu_and_bias_gradients(backend, rng):
    """Those of the unfused composition, at zero as well."""
    x, w, b = (rng.integers(-2, 3, shape).astype(np.float32) for shape in [(2, 6, 4), (3, 4, 5), (5,)])

    def fused(x, w, b):
        return jnp.sum(jcc.conv(x, w, strides=2, bias=b, activation="relu") * 3)

    def plain(x, w, b):
        return jnp.sum(jax.nn.relu(jcc.conv(x, w, strides=2) + b) * 3)

    with jcc.options(backend=backend):
        for actual, expected in zip(
            jax.grad(fused, (0, 1, 2))(x, w, b), jax.grad(plain, (0, 1, 2))(x, w, b), strict=True
        ):
            harness.assert_equal(actual, expected)
