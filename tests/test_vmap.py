"""Batching: every position, both operands, nested, together with gradients, and an empty axis."""

import itertools

import harness
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import jax_cudnn_conv as jcc

# Groups, a stride with a remainder and a pad; 2-D with everything different; depthwise; other layouts.
PROBLEMS = (
    "g2_n2i4o6_w7k3s2p1",
    "g2_n1i2o4_h5k2s2p1,0_w6k3p0,2d2",
    "g3_n2i3o6_w8k3s3p1",
    "g2_n2i4o6_w7k3s2p1@CNW-WOI-WNC",
)


@pytest.fixture(params=harness.ROLES)
def name(request):
    return request.param


def stacked(name, problem, size, axes, seed=0):
    """Operands with a new axis of `size` where `axes` has a position, and the oracle's results, stacked."""
    copies = [harness.operands(name, problem, seed + s) for s in range(size)]
    results = [
        harness.oracle(name, problem, *(copies[0 if axis is None else s][i] for i, axis in enumerate(axes)))
        for s in range(size)
    ]
    operands = [
        copies[0][i] if axis is None else np.stack([copy[i] for copy in copies], axis)
        for i, axis in enumerate(axes)
    ]
    return operands, np.stack(results)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_each_operand_and_both(problem, name, axes, backend):
    operands, expected = stacked(name, problem, 3, axes)
    with jcc.options(backend=backend):
        actual = jax.jit(jax.vmap(harness.function(name, problem), axes))(*operands)
    harness.assert_equal(actual, expected, harness.rerun(problem))


POSITIONS = [axes for axes in itertools.product((None, 0, 1, 2, 3), repeat=2) if axes != (None, None)]


@pytest.mark.parametrize("axes", POSITIONS)
def test_every_position(axes, name):
    """The mapped axis anywhere in the operands and, in turn, anywhere in the result."""
    problem = problems.parse("g2_n2i4o6_w7k3s2p1")
    operands, expected = stacked(name, problem, 3, axes)
    out = POSITIONS.index(axes) % 4 - 4 * (POSITIONS.index(axes) % 2)
    actual = jax.jit(jax.vmap(harness.function(name, problem), axes, out))(*operands)
    harness.assert_equal(actual, np.moveaxis(expected, 0, out))


@pytest.mark.parametrize(
    ("inner", "outer"), [((0, None), (None, 0)), ((None, 0), (0, 0)), ((1, 2), (0, 1)), ((0, 0), (0, None))]
)
def test_nested(inner, outer, name, backend):
    """vmap of vmap: each operand has one, the other or both axes."""
    problem = problems.parse("g2_n1i2o4_h5k2s2p1,0_w6k3p0,2d2")
    sizes = {"inner": 3, "outer": 2}
    copies = [
        [harness.operands(name, problem, 10 * s + t) for t in range(sizes["inner"])]
        for s in range(sizes["outer"])
    ]

    def pick(i, s, t):
        return copies[0 if outer[i] is None else s][0 if inner[i] is None else t][i]

    operands = []
    for i in range(2):
        rows = []
        for s in range(1 if outer[i] is None else sizes["outer"]):
            row = [pick(i, s, t) for t in range(1 if inner[i] is None else sizes["inner"])]
            rows.append(row[0] if inner[i] is None else np.stack(row, inner[i]))
        operands.append(rows[0] if outer[i] is None else np.stack(rows, outer[i]))
    expected = np.stack(
        [
            np.stack(
                [harness.oracle(name, problem, pick(0, s, t), pick(1, s, t)) for t in range(sizes["inner"])]
            )
            for s in range(sizes["outer"])
        ]
    )
    f = harness.function(name, problem)
    with jcc.options(backend=backend):
        actual = jax.jit(jax.vmap(jax.vmap(f, inner), outer))(*operands)
    harness.assert_equal(actual, expected)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_gradient_of_each_sample(axes, name, backend):
    """vmap(grad), in both operands."""
    problem = problems.parse("g2_n2i4o6_w7k3s2p1")
    first, second, result = harness.ROLES[name]
    f = harness.function(name, problem)
    (a, b), _ = stacked(name, problem, 3, axes)
    ct = harness.arrays(problem, 5)[result]

    def loss(a, b):
        return jnp.vdot(f(a, b), ct)

    with jcc.options(backend=backend):
        da, db = jax.jit(jax.vmap(jax.grad(loss, (0, 1)), axes))(a, b)
    for s in range(3):
        a_s, b_s = (
            operand if axis is None else operand[s] for operand, axis in zip((a, b), axes, strict=True)
        )
        harness.assert_equal(da[s], harness.third(problem, first, **{second: b_s, result: ct}))
        harness.assert_equal(db[s], harness.third(problem, second, **{first: a_s, result: ct}))


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_gradient_through_vmap(axes, name, backend):
    """grad(vmap): an operand that is not mapped gathers the cotangents of all samples."""
    problem = problems.parse("g2_n2i4o6_w7k3s2p1")
    first, second, result = harness.ROLES[name]
    f = harness.function(name, problem)
    (a, b), out = stacked(name, problem, 3, axes)
    ct = np.stack([harness.arrays(problem, 5 + s)[result] for s in range(3)])
    with jcc.options(backend=backend):
        da, db = jax.jit(lambda a, b: jax.vjp(jax.vmap(f, axes), a, b)[1](ct))(a, b)
    samples = [
        [operand if axis is None else operand[s] for operand, axis in zip((a, b), axes, strict=True)]
        for s in range(3)
    ]
    each_a = [
        harness.third(problem, first, **{second: b_s, result: ct[s]}) for s, (_, b_s) in enumerate(samples)
    ]
    each_b = [
        harness.third(problem, second, **{first: a_s, result: ct[s]}) for s, (a_s, _) in enumerate(samples)
    ]
    harness.assert_equal(da, sum(each_a) if axes[0] is None else np.stack(each_a))
    harness.assert_equal(db, sum(each_b) if axes[1] is None else np.stack(each_b))


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (2, 1)])
def test_empty_axis(axes, name, backend):
    """C13: no sample gives no result, and no error."""
    problem = problems.parse("g2_n2i4o6_w7k3s2p1")
    operands = [
        operand if axis is None else np.zeros(np.insert(operand.shape, axis, 0), np.float32)
        for operand, axis in zip(harness.operands(name, problem), axes, strict=True)
    ]
    shape = (0, *harness.arrays(problem)[harness.ROLES[name][2]].shape)
    f = harness.function(name, problem)
    with jcc.options(backend=backend):
        out = jax.jit(jax.vmap(f, axes))(*operands)
        gradients = jax.jit(jax.grad(lambda a, b: jax.vmap(f, axes)(a, b).sum(), (0, 1)))(*operands)
    assert out.shape == shape
    assert out.dtype == np.float32
    for gradient, operand in zip(gradients, operands, strict=True):
        harness.assert_equal(gradient, np.zeros_like(operand))


def test_sample_axis_of_extent_one(name, backend):
    problem = problems.parse("g2_n2i4o6_w7k3s2p1")
    operands, expected = stacked(name, problem, 1, (0, 0))
    with jcc.options(backend=backend):
        harness.assert_equal(jax.vmap(harness.function(name, problem))(*operands), expected)


@pytest.mark.parametrize("transform", [jax.jacfwd, jax.jacrev])
def test_jacobians(transform, backend):
    """Both Jacobians map the primitives; each is the oracle applied to unit vectors."""
    problem = problems.parse("g2_n1i2o4_w5k3s2p1")
    x, w = harness.operands("conv", problem)
    f = harness.function("conv", problem)
    with jcc.options(backend=backend):
        dx, dw = jax.jit(transform(f, (0, 1)))(x, w)
    for at in np.ndindex(x.shape):
        unit = np.zeros_like(x)
        unit[at] = 1
        harness.assert_equal(dx[(..., *at)], harness.oracle("conv", problem, unit, w))
    for at in np.ndindex(w.shape):
        unit = np.zeros_like(w)
        unit[at] = 1
        harness.assert_equal(dw[(..., *at)], harness.oracle("conv", problem, x, unit))


def test_bias_and_activation(backend, rng):
    """A mapped bias beside a shared one."""
    x, w, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in [(3, 2, 6, 4), (3, 4, 5), (3, 5)])
    with jcc.options(backend=backend):
        mapped = jax.vmap(lambda x, b: jcc.conv(x, w, bias=b, activation="relu"))(x, b)
        looped = jnp.stack([jcc.conv(x[s], w, bias=b[s], activation="relu") for s in range(3)])
    harness.assert_equal(mapped, looped)
