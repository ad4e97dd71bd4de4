"""Random problems over the whole geometry against the oracle, exactly.

A few hundred run with the other tests; 20,000 with `python -m pytest -m sweep --hypothesis-profile=sweep`. A
failure shows the smallest problem found and a line that runs it again.
"""

import itertools

import harness
import hypothesis
import jax
import numpy as np
import problems
import pytest
import reference
from hypothesis import strategies as st

import jax_cudnn_conv as jcc

MOST = {0: 1, 1: 24, 2: 10, 3: 6, 4: 4}  # the largest extent of an axis, by the number of axes


@st.composite
def axes(draw, rank):
    """One (extent, kernel, stride, pads, dilation) that does not crop more than there is."""
    extent = draw(st.integers(1, MOST[rank]) | st.integers(0, 2))
    wide = (st.integers(1, 3), st.integers(14, 31)) if rank < 3 else (st.integers(1, 4),)
    kernel = draw(st.one_of(st.integers(1, 3), st.integers(1, 6 if rank < 3 else 4), *wide))
    stride = draw(st.integers(1, 2) | st.integers(1, 5))
    dilation = draw(st.integers(1, 2) | st.integers(1, 4))
    low = draw(st.integers(0, 2) | st.integers(-4, 8))
    high = draw(st.integers(0, 2) | st.integers(-4, 8))
    hypothesis.assume(extent + low + high >= 0)
    return extent, kernel, stride, (low, high), dilation


@st.composite
def geometries(
    draw, dtypes=("f32",) * 12 + ("bf16", "f16", "f64", "i32"), ranks=(1, 1, 1, 2, 2, 2, 3, 3, 0, 4)
):
    """Any problem: rank, extents, channels near the blocks of vectorised kernels, groups, dtype, layout."""
    rank = draw(st.sampled_from(ranks))
    groups = draw(st.sampled_from((1, 1, 1, 2, 3, 4, 8)))
    channels = st.integers(1, 5) | st.sampled_from((0, 1, 7, 8, 9, 16, 17))
    drawn = [draw(axes(rank)) for _ in range(rank)]
    layout = ()
    if draw(st.booleans()):
        letters = reference.spatial_letters(rank)
        layout = tuple("".join(draw(st.permutations(two + letters))) for two in ("NC", "IO", "NC"))
    extents, kernel, strides, pads, dilation = zip(*drawn, strict=True) if drawn else ((),) * 5
    problem = problems.Problem(
        n=draw(st.integers(1, 3) | st.integers(0, 1)),
        i=groups * draw(channels),
        o=groups * draw(channels),
        extents=extents,
        kernel=kernel,
        strides=strides,
        pads=pads,
        dilation=dilation,
        groups=groups,
        dtype=draw(st.sampled_from(dtypes)),
        layout=layout,
    )
    hypothesis.assume(np.prod(problem.y_shape) * np.prod(problem.w_shape[1:]) < 2**20)
    return problem


_count = itertools.count(1)


def check(problem):
    """Every function on one problem; the text that describes it is that problem."""
    if next(_count) % 250 == 0:
        jax.clear_caches()  # each problem compiles a program of its own
    assert problems.parse(str(problem)) == problem
    hypothesis.note(harness.rerun(problem))
    harness.check_every_function(problem)


@hypothesis.given(geometries())
def test_generated_problems(problem_):
    check(problem_)


@pytest.mark.sweep
@hypothesis.settings(max_examples=20_000)
@hypothesis.given(geometries())
def test_sweep(problem_):
    check(problem_)


@hypothesis.settings(max_examples=40)
@hypothesis.given(geometries(("f32",), (1, 2)), st.sampled_from(sorted(harness.ROLES)), st.integers(0, 2))
def test_generated_gradients_of_samples(problem_, name, size):
    """vmap of both cotangents over one operand."""
    hypothesis.assume(problem_.transposable or name != "conv_transpose")
    hypothesis.note(f"{harness.rerun(problem_)} # {name}, {size} samples")
    first, second, result = harness.ROLES[name]
    a, b = harness.operands(name, problem_)
    cts = [harness.arrays(problem_, 1 + s)[result] for s in range(size)]
    stacked = np.stack(cts) if cts else np.zeros((0, *harness.arrays(problem_)[result].shape), np.float32)
    das, dbs = jax.jit(jax.vmap(jax.vjp(harness.function(name, problem_), a, b)[1]))(stacked)
    assert das.shape == (size, *a.shape)
    assert dbs.shape == (size, *b.shape)
    for s, ct in enumerate(cts):
        harness.assert_equal(das[s], harness.third(problem_, first, **{second: b, result: ct}))
        harness.assert_equal(dbs[s], harness.third(problem_, second, **{first: a, result: ct}))


@hypothesis.settings(max_examples=400)
@hypothesis.given(geometries(("f32",)), st.data())
def test_generated_sizes(problem_, data):
    """Without computing anything: conv's size is the formula's, and conv_transpose leads back to x's."""
    x, w, y = (
        jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (harness.arrays(problem_)[role] for role in "xwy")
    )
    assert jax.eval_shape(harness.function("conv", problem_), x, w).shape == y.shape
    if problem_.transposable:
        assert jax.eval_shape(harness.function("conv_transpose", problem_), y, w).shape == x.shape
    padding = data.draw(st.sampled_from(("SAME", "SAME_LOWER", "VALID")))
    kw = {key: value for key, value in harness.keywords("conv", problem_).items() if key != "padding"}
    strings = jax.eval_shape(lambda x, w: jcc.conv(x, w, padding=padding, **kw), x, w)
    outputs = [
        strings.shape[problem_.dimension_numbers[2].index(c)]
        for c in reference.logical(problem_.dimension_numbers)[2][2:]
    ]
    if padding != "VALID":
        assert outputs == [
            -(-extent // s) for extent, s in zip(problem_.extents, problem_.strides, strict=True)
        ]
    else:
        no_pads = ((0, 0),) * problem_.rank
        assert outputs == list(
            map(
                reference.conv_extent,
                problem_.extents,
                problem_.kernel,
                problem_.strides,
                no_pads,
                problem_.dilation,
            )
        )
