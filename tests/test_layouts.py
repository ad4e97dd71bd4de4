"""Dimension numbers in any order, and operands that are views of something else."""

import itertools
import re

import harness
import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest

import jax_cudnn_conv as jcc


def shuffled(letters, step, start):
    """All permutations of some letters, in an order that pairs them differently for each step and start."""
    permutations = ["".join(p) for p in itertools.permutations(letters)]
    return [permutations[(step * i + start) % len(permutations)] for i in range(len(permutations))]


def with_layouts(text, layouts):
    return [f"{text}@{x}-{w}-{y}" for x, w, y in layouts]


# Every extent of every array differs from the others, so a misplaced axis cannot go unnoticed. Each
# permutation of each array occurs; the order of the kernel's spatial letters is that of strides and pads.
ONE = [
    (x, w, y)
    for i, x in enumerate(shuffled("NCW", 1, 0))
    for w, y in zip(shuffled("OIW", 1, 0), shuffled("NCW", 1, i), strict=True)
]
TWO = zip(shuffled("NCHW", 1, 0), shuffled("OIHW", 7, 3), shuffled("NCHW", 11, 5), strict=True)
THREE = list(zip(shuffled("NCDHW", 1, 0), shuffled("OIDHW", 7, 3), shuffled("NCDHW", 11, 5), strict=True))[
    ::11
]
PROBLEMS = [
    *with_layouts("g2_n3i4o10_w9k5s2p1,3", ONE),
    *with_layouts("g2_n3i6o10_h11k4s2p1,0_w8k2p0,1d2", TWO),
    *with_layouts("g2_n1i4o6_d5k3p1,0_h7k1s2_w8k4s3p2d2", THREE),
]


def test_permuted_layouts(problem, backend):
    harness.check_every_function(problem, backend)


def test_every_permutation_occurs():
    layouts = [problems.parse(text).layout for text in PROBLEMS if problems.parse(text).rank == 2]
    assert [len({layout[i] for layout in layouts}) for i in range(3)] == [24, 24, 24]


@pytest.mark.parametrize("text", ["n2i3o4", "n2i3o4_w5k2", "n2i3o4_h5k2_w6k3", "n1i2o3_d3k1_h4k2_w5k3"])
def test_default_is_channels_last(text):
    problem = problems.parse(text)
    for name in harness.ROLES:
        operands = harness.operands(name, problem)
        implicit = harness.function(name, problem)(*operands)
        explicit = harness.function(name, problem, dimension_numbers=problem.dimension_numbers)(*operands)
        harness.assert_equal(implicit, explicit, name)


def test_letters_of_other_ranks_are_free():
    problem = problems.parse("n1i2o3_a3k2_b4k3s2p1_c5k1_d2k2p1,0@NCabcd-OIabcd-NCabcd")
    harness.check_every_function(problem)


def test_lax_dimension_numbers_object(backend):
    problem = problems.parse("n2i3o4_h5k2_w6k3s2@NCHW-OIHW-NHWC")
    x, w = harness.operands("conv", problem)
    numbers = jax.lax.conv_dimension_numbers(x.shape, w.shape, problem.layout)
    with jcc.options(backend=backend):
        actual = harness.function("conv", problem, dimension_numbers=numbers)(x, w)
    harness.assert_equal(actual, harness.oracle("conv", problem, x, w))


VIEWS = {
    "transposed": (
        lambda a: a.transpose(*reversed(range(a.ndim))),
        lambda a: a.transpose(*reversed(range(a.ndim))),
    ),
    "sliced": (
        lambda a: a[1:-1, ..., 2:],
        lambda a: jnp.pad(a, [(1, 1), *[(0, 0)] * (a.ndim - 2), (2, 0)], constant_values=7),
    ),
    "strided": (lambda a: a[::2], lambda a: jnp.repeat(a, 2, axis=0)),
    "reversed": (lambda a: jnp.flip(a, (0, 1, 2)), lambda a: jnp.flip(a, (0, 1, 2))),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", harness.ROLES)
def test_c18_operands_that_are_views(view, name, backend):
    """XLA may hand over any layout or fuse the view away: the values are those of materialised operands."""
    problem = problems.parse("g2_n2i4o6_h7k3s2p1_w9k2p1,0")
    undo, do = VIEWS[view]
    a, b = harness.operands(name, problem)
    f = harness.function(name, problem)
    with jcc.options(backend=backend):
        actual = jax.jit(lambda a, b: f(undo(a), undo(b)))(do(jnp.asarray(a)), do(jnp.asarray(b)))
    harness.assert_equal(actual, harness.oracle(name, problem, a, b))


def test_c18_transposes_inside_jit(backend, rng):
    """Operands and result transposed in the same program."""
    problem = problems.parse("n1i16o17_h9k3_w11k3")
    x, w = harness.operands("conv", problem)
    stored_x, stored_w = (np.ascontiguousarray(a.transpose(3, 1, 2, 0)) for a in (x, w))
    with jcc.options(backend=backend):
        f = jax.jit(
            lambda x, w: jcc.conv(x.transpose(3, 1, 2, 0), w.transpose(3, 1, 2, 0), padding=0).transpose(
                0, 3, 1, 2
            )
        )
        actual = f(stored_x, stored_w)
    harness.assert_equal(actual, harness.oracle("conv", problem, x, w).transpose(0, 3, 1, 2))


def test_c18_broadcast_operands(backend):
    """An operand that is one number or one row repeated."""
    problem = problems.parse("n2i3o4_h5k2_w6k3")
    x, w = harness.operands("conv", problem)
    x, w = np.broadcast_to(x[:, :1], x.shape), np.broadcast_to(w[0, 0, 0, 0], w.shape)
    with jcc.options(backend=backend):
        f = jax.jit(
            lambda row, one: jcc.conv(
                jnp.broadcast_to(row, x.shape), jnp.broadcast_to(one, w.shape), padding=0
            )
        )
        actual = f(x[:, :1], w[0, 0, 0, 0])
    harness.assert_equal(actual, harness.oracle("conv", problem, x, w))


@pytest.mark.parametrize(
    "layout", [("NCHW", "OIHW", "NCHW"), ("NHWC", "OHWI", "NCHW"), ("CWHN", "IHWO", "HNWC")]
)
def test_no_layout_costs_a_transpose(layout, native_missing):
    if native_missing:
        pytest.skip(native_missing)
    problem = problems.parse("n2i3o4_h5k2_w6k3@" + "-".join(layout))
    for name in harness.ROLES:
        program = (
            jax.jit(harness.function(name, problem))
            .lower(*harness.operands(name, problem))
            .compile()
            .as_text()
        )
        assert not re.search(r" (transpose|copy)\(", program), name
