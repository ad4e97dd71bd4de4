"""The oracle against numbers worked out by hand, a loop over every index, and the adjoint identity."""

import itertools

import numpy as np
import problems
import pytest
import reference as ref

ONE = [(0, 0)]


def one_channel(values):
    return np.asarray(values, np.float64)[None, None]


def deconv1(x, w, strides, pads, dilation=1, op=0):
    return ref.deconv(one_channel(x), one_channel(w), (strides,), [pads], (dilation,), 1, (op,))[
        0, 0
    ].tolist()


def test_c01_input_gradient_of_a_stride_with_a_remainder():
    w = one_channel([1, 2, 3, 4])
    dx = ref.conv_dx(np.ones((1, 1, 2)), w, (11,), (4,), ONE, (1,))
    assert dx[0, 0].tolist() == [1, 2, 3, 4, 1, 2, 3, 4, 0, 0, 0]


def test_c02_weight_gradient_of_a_stride_with_a_remainder():
    x = one_channel([1, 10, 100, 1000, 10000, 100000])
    dw = ref.conv_dw(x, np.ones((1, 1, 2)), (3,), (2,), ONE, (1,))
    assert dw[0, 0].tolist() == [101, 1010, 10100]


def test_c04_the_transpose_does_not_flip_the_kernel():
    assert deconv1([1, 0], [1, 2, 3], 2, (0, 0)) == [1, 2, 3, 0, 0]


def test_c08_output_padding_holds_values():
    w = np.arange(1, 10.0).reshape(1, 1, 3, 3)
    y = ref.deconv(np.ones((1, 1, 1, 1)), w, (2, 2), [(1, 1)] * 2, (1, 1), 1, (1, 1))
    assert y[0, 0].tolist() == [[5, 6], [8, 9]]
    assert deconv1([1, 1], [5], 3, (0, 0), op=2) == [5, 0, 0, 5, 0, 0]


@pytest.mark.parametrize(
    ("k", "s", "length", "expected"),
    [
        (2, 1, 2, [1, 4]),
        (3, 2, 3, [1, 2, 5, 4, 9, 6]),
        (4, 2, 3, [2, 5, 8, 9, 14, 9]),
        (2, 3, 2, [1, 2, 0, 2, 4, 0]),
        (1, 3, 2, [1, 0, 0, 2, 0, 0]),
    ],
)
def test_c09_the_transpose_of_same(k, s, length, expected):
    pads = ref.same_pads(length * s, k, s, 1)
    x, w = one_channel(range(1, length + 1)), one_channel(range(1, k + 1))
    assert ref.conv_dx(x, w, (length * s,), (s,), [pads], (1,))[0, 0].tolist() == expected


def test_c11_negative_pads_crop():
    assert ref.conv(one_channel(range(6)), one_channel([1]), (1,), [(-5, 1)], (1,))[0, 0].tolist() == [5, 0]
    assert deconv1([1, 2, 3, 4], [1], 2, (1, 2)) == [0, 2, 0, 3]
    x = 100.0 * np.arange(15)[:, None, None] + 10 * np.arange(6)[:, None] + np.arange(8)
    y = ref.conv(x.transpose(2, 0, 1)[None], np.eye(8)[..., None, None], (1, 1), [(0, 0), (-5, 1)], (1, 1))
    assert (y[0, :, :, 0] == x[:, 5].T).all()
    assert not y[0, :, :, 1].any()


def test_c12_dilation_and_stride_of_two():
    w = np.array([[[[1.0, 2], [3, 4]]]])
    y = ref.deconv(w, w, (2, 2), [(0, 0)] * 2, (2, 2))[0, 0]
    assert y[::2, ::2].tolist() == [[1, 4, 4], [6, 20, 16], [9, 24, 16]]
    assert y.shape == (5, 5)
    assert not y[1::2].any()
    assert not y[:, 1::2].any()


def test_extents():
    assert [
        ref.conv_extent(*a) for a in [(11, 4, 4, (0, 0), 1), (16, 7, 3, (2, 2), 1), (1, 2, 1, (0, 0), 1)]
    ] == [2, 5, 0]
    assert ref.conv_extent(2, 5, 1, (0, 0), 1) == 0
    assert ref.deconv_extent(3, 3, 2, (1, 1), 2, 1) == 8
    assert ref.same_pads(5, 4, 1, 1) == (1, 2)
    assert ref.same_pads(5, 4, 1, 1, lower=True) == (2, 1)


def by_every_index(x, w, strides, pads, dilation, groups):
    """Convolution in two spatial dimensions as seven nested loops over a padded copy of x."""
    (h_lo, h_hi), (w_lo, w_hi) = pads
    crop = x[:, :, max(-h_lo, 0) : x.shape[2] - max(-h_hi, 0), max(-w_lo, 0) : x.shape[3] - max(-w_hi, 0)]
    padded = np.pad(crop, [(0, 0), (0, 0), (max(h_lo, 0), max(h_hi, 0)), (max(w_lo, 0), max(w_hi, 0))])
    outputs = [
        (padded.shape[2 + a] - dilation[a] * (w.shape[2 + a] - 1) - 1) // strides[a] + 1 for a in range(2)
    ]
    y = np.zeros((x.shape[0], w.shape[0], *outputs))
    per_group_o = w.shape[0] // groups
    for n, o, i, j in itertools.product(*map(range, y.shape)):
        for c, a, b in itertools.product(*map(range, w.shape[1:])):
            channel = o // per_group_o * w.shape[1] + c
            at = i * strides[0] + a * dilation[0], j * strides[1] + b * dilation[1]
            y[n, o, i, j] += padded[n, channel, *at] * w[o, c, a, b]
    return y


@pytest.mark.parametrize(
    "text",
    [
        "n2i3o2_h4k3p1_w5k2",
        "g2_n1i4o6_h5k2s3p2,0_w6k3p0,1d2",
        "n1i2o3_h6k2s2p-1,2_w7k3s3p3,-2",
        "g3_n2i3o6_h4k1s2_w3k3p2d2",
    ],
)
def test_against_seven_loops(text, rng):
    problem = problems.parse(text)
    x, w, _ = problems.data(problem, rng)
    assert (ref.conv(x, w, *problem.geometry) == by_every_index(x, w, *problem.geometry)).all()


@pytest.mark.parametrize("text", [*problems.ALL, *problems.ZERO_EXTENTS, *problems.OTHER_RANKS])
def test_adjoint_identity(text, rng):
    """<conv(x, w), v> = <x, dx(v, w)> = <w, dw(x, v)>: with integers, exactly."""
    problem = problems.parse(text)
    x, w, v = problems.data(problem, rng)
    y = ref.conv(x, w, *problem.geometry)
    dx = ref.conv_dx(v, w, problem.extents, *problem.geometry)
    dw = ref.conv_dw(x, v, problem.kernel, *problem.geometry)
    assert (y.shape, dx.shape, dw.shape) == (problem.y_shape, problem.x_shape, problem.w_shape)
    assert (y * v).sum() == (x * dx).sum() == (w * dw).sum()
    if problem.transposable:
        assert (ref.deconv(v, w, *problem.geometry, problem.output_padding) == dx).all()


def test_layouts_round_trip(rng):
    numbers = ("HNCW", "WOHI", "CWNH")
    x = rng.normal(size=(2, 3, 5, 7))
    moved = ref.to_layout("x", x, numbers)
    assert moved.shape == (7, 2, 3, 5)  # the kernel's string says that the first spatial axis is W
    assert (ref.from_layout("x", moved, numbers) == x).all()


@pytest.mark.parametrize(
    "text", [*problems.ALL, *problems.FEW, *problems.ZERO_EXTENTS, *problems.OTHER_RANKS]
)
def test_problem_strings_round_trip(text):
    assert str(problems.parse(text)) == text


def test_problem_strings_say_everything():
    text = "bf16_g2_n2i4o6_h7k3s2p-1,2d3_w5k1@CWNH-OIWH-NCHW"
    problem = problems.parse(text)
    assert str(problem) == text
    assert problem.pads == ((-1, 2), (0, 0))
    assert problem.dilation == (3, 1)
    assert problem.layout[1] == "OIWH"
    assert len(set(problems.ALL)) == len(problems.ALL)
    with pytest.raises(ValueError, match="n2i4"):
        problems.parse("n2i4_w7k3")
