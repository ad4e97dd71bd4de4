"""Convolution problems written as short strings: the ids of the tests, and the way to rerun one.

    [TYPE_][gG_]nNiIoO[_AXIS]...[@X-W-Y]          g2_n2i4o6_w7k3s2p1
    AXIS:  a letter, the extent, kK, [sS], [pLO[,HI]], [dD]      h7k3s2p0,-1d2

- TYPE is one of `DTYPES`; f32 is left out.
- `i` and `o` are the total channels of x and y, over all groups `g` (1 is left out).
- One AXIS block per spatial axis, called w / h, w / d, h, w / a, b, c, d, ... by their number. Stride `s` and
  dilation `d` are 1, the pads `p` 0 where left out; one pad stands for both sides; a negative pad crops.
- `@NCW-OIW-NCW` gives dimension numbers other than channels last.

All sizes are those of the convolution; its transposed convolution is the same problem read from y to x.
"""

import dataclasses
import re

import numpy as np
import reference

DTYPES = {
    "f32": "float32",
    "f64": "float64",
    "bf16": "bfloat16",
    "f16": "float16",
    "i8": "int8",
    "i32": "int32",
    "c64": "complex64",
}
_HEAD = re.compile(
    rf"(?:(?P<dtype>{'|'.join(DTYPES)})_)?(?:g(?P<g>\d+)_)?n(?P<n>\d+)i(?P<i>\d+)o(?P<o>\d+)(?P<axes>(?:_[^_]+)*)"
)
_AXIS = re.compile(r"([a-z])(\d+)k(\d+)(?:s(\d+))?(?:p(-?\d+)(?:,(-?\d+))?)?(?:d(\d+))?")


@dataclasses.dataclass(frozen=True)
class Problem:
    """The sizes of one convolution. Tuples have one entry per spatial axis."""

    n: int
    i: int
    o: int
    extents: tuple = ()
    kernel: tuple = ()
    strides: tuple = ()
    pads: tuple = ()
    dilation: tuple = ()
    groups: int = 1
    dtype: str = "f32"
    layout: tuple = ()

    def __str__(self):
        return format(self)

    @property
    def rank(self):
        return len(self.extents)

    @property
    def dimension_numbers(self):
        return self.layout or reference.channels_last(self.rank)

    @property
    def outputs(self):
        """The spatial extents of y."""
        return tuple(
            map(reference.conv_extent, self.extents, self.kernel, self.strides, self.pads, self.dilation)
        )

    @property
    def output_padding(self):
        """What the stride leaves over: the output padding with which conv_transpose gives x's extents."""
        formula = map(
            reference.deconv_extent, self.outputs, self.kernel, self.strides, self.pads, self.dilation
        )
        return tuple(x - y for x, y in zip(self.extents, formula, strict=True))

    @property
    def transposable(self):
        """Whether `conv_transpose` reaches x's extents from y's: not where the kernel never fits into x."""
        return all(
            0 <= op < max(s, d)
            for op, s, d in zip(self.output_padding, self.strides, self.dilation, strict=True)
        )

    @property
    def x_shape(self):
        return (self.n, self.i, *self.extents)

    @property
    def w_shape(self):
        return (self.o, self.i // self.groups, *self.kernel)

    @property
    def y_shape(self):
        return (self.n, self.o, *self.outputs)

    @property
    def geometry(self):
        """The trailing arguments of the functions in `reference`."""
        return self.strides, self.pads, self.dilation, self.groups


def parse(text):
    """The problem that a string describes."""
    body, _, layout = text.partition("@")
    head = _HEAD.fullmatch(body)
    axes = [_AXIS.fullmatch(block) for block in head["axes"].split("_")[1:]] if head else [None]
    if None in axes:
        raise ValueError(f"not a problem string: {text!r}")
    numbers = [[None if v is None else int(v) for v in axis.groups()[1:]] for axis in axes]
    return Problem(
        n=int(head["n"]),
        i=int(head["i"]),
        o=int(head["o"]),
        extents=tuple(a[0] for a in numbers),
        kernel=tuple(a[1] for a in numbers),
        strides=tuple(1 if a[2] is None else a[2] for a in numbers),
        pads=tuple((a[3] or 0, (a[3] or 0) if a[4] is None else a[4]) for a in numbers),
        dilation=tuple(1 if a[5] is None else a[5] for a in numbers),
        groups=int(head["g"] or 1),
        dtype=head["dtype"] or "f32",
        layout=tuple(layout.split("-")) if layout else (),
    )


def format(problem):
    """The shortest string that `parse` turns into `problem`."""
    p = problem
    parts = [] if p.dtype == "f32" else [p.dtype]
    parts += [f"g{p.groups}"] if p.groups != 1 else []
    parts.append(f"n{p.n}i{p.i}o{p.o}")
    letters = {1: "w", 2: "hw", 3: "dhw"}.get(p.rank, "abcdefgh")
    for letter, x, k, s, (lo, hi), d in zip(
        letters, p.extents, p.kernel, p.strides, p.pads, p.dilation, strict=False
    ):
        block = f"{letter}{x}k{k}"
        block += f"s{s}" if s != 1 else ""
        block += "" if lo == hi == 0 else f"p{lo}" if lo == hi else f"p{lo},{hi}"
        block += f"d{d}" if d != 1 else ""
        parts.append(block)
    return "_".join(parts) + ("@" + "-".join(p.layout) if p.layout else "")


def data(problem, rng):
    """Logical x, w and y (a cotangent) of integers in [-4, 4]: float32 sums of their products are exact."""

    def draw(shape):
        return rng.integers(-4, 5, shape).astype(np.float64)

    shapes = problem.x_shape, problem.w_shape, problem.y_shape
    if problem.dtype.startswith("c"):
        return tuple(draw(shape) + 1j * draw(shape) for shape in shapes)
    return tuple(map(draw, shapes))


# Each block is a kind of fault that convolution libraries have had. Extents differ from axis to axis.
PLAIN = """
    n2i3o5_w9k3                     n3i2o4_w8k5p2                    n1i5o3_w13k4
    n2i3o5_h6k3p1_w9k3p1            n2i4o3_h5k2_w8k4                 n1i2o6_h7k5p2_w4k1
    n1i3o4_d3k2_h5k3p1_w6k2         n2i2o3_d4k3p1_h3k1_w7k5p2        n1i1o1_w5k3
    n2i16o17_h8k3p1_w9k3p1          n1i33o8_h7k3p1_w6k3p1            n1i8o32_w40k9p4
"""
# A stride that leaves a remainder: the last inputs are never read, but their gradient exists.
REMAINDER = """
    n1i1o1_w11k4s4                  n2i3o2_w1603k4s4                 n2i2o5_h16k7s3p2_w16k7s3p2
    n1i1o1_w6k3s2                   n2i3o5_w10k3s4p1                 n1i2o3_h9k2s3_w11k3s4p0,1
    n2i3o4_d5k2s2_h8k3s3p1_w7k2s4   n1i3o2_h6k1s4_w7k2s5p1,0         n2i4o3_w14k5s3p2,1d2
"""
# Pads that differ between the two sides.
UNEVEN = """
    n2i3o5_w9k4p2,0                 n2i3o5_w9k4p0,3                  n2i3o5_w9k4p3,1
    n2i3o5_w9k4s2p2,0               n2i3o5_w9k4s2p0,3                n2i3o5_w9k4s2p3,1
    n1i4o3_w12k3p6,0d3              n2i2o3_h5k2p1,0_w8k3s2p0,2       n1i2o4_d3k2p0,1_h4k3s2p2,0_w6k4p1,2
"""
# Negative pads crop, alone or beside a positive pad on the other side or on another axis.
CROP = """
    n1i1o1_w6k1p-5,1                n1i8o8_h15k1_w6k1p-5,1           n2i3o4_w9k3p-2,-1
    n2i3o4_w9k3p-2,1                n2i3o4_w9k3s2p2,-3               n2i2o5_h6k3p-1,2_w8k2s3p1,-2
    n1i2o3_h7k2p3,-2d2_w5k3p-1      n1i3o2_d4k2p-1,0_h5k3p0,-1_w7k2s2p-2,3   g2_n2i4o6_w10k3s2p-1,-2
    n1i2o3_w3k1p-5,9                n1i2o3_h4k2p-3,6_w5k3p8,-6
"""
# Pads as large as the kernel, as the input, and larger.
LARGE_PADS = """
    n1i1o1_w4k2p3,0                 n2i3o4_w5k3p3                    n2i3o4_w5k3p5,7
    n2i2o3_w3k2s3p8,6               n1i2o3_h2k3p4,2_w3k2s2p5,3       n1i3o2_w4k1p2,1
    n1i2o2_d2k2p3_h3k1s2p2,4_w2k3p5,1   g2_n2i4o2_w4k3s2p6,5d2       n1i2o3_w2k3p7d3
"""
GROUPS = """
    g2_n2i4o6_w7k3s2p1              g3_n1i6o9_d4k2s4p1_h4k2s4p1_w5k2p1   g2_n2i6o4_h5k3_w7k2s2p1
    g3_n2i3o6_w8k3p1                g4_n1i8o4_h6k2p1,0_w5k3s2        g5_n2i10o5_w9k4s3p2
    g2_n1i16o8_w128k21p10           g2_n2i32o48_h6k3p1_w7k3p1        g3_n2i51o24_h5k3s2p1_w6k2
"""
# One input channel to a group, with and without several outputs to each.
DEPTHWISE = """
    g4_n1i4o4_h4k3s2p1_w4k3s2p1     g3_n2i3o3_w9k4p3,0               g4_n2i4o8_w9k3s2p1
    g5_n1i5o15_h6k3p1_w7k2s3        g24_n2i24o24_h6k3s2p1_w6k3s2p1   g3_n2i3o6_d4k2_h5k3s2p1_w6k1
    g16_n2i16o16_h7k5p2_w9k3p1d2    g6_n1i6o6_w20k4p9,0d3            g17_n2i17o17_h5k3s2p1,0_w8k3p1
"""
DILATED = """
    n2i3o5_w13k3d3                  n2i2o3_w12k2s3p1d4               n2i3o4_h9k2d3_w11k3p2d2
    n1i2o3_h7k3s2p2d2_w10k4d3       n1i2o3_d5k2d2_h7k2s2p1d3_w9k3d4  g2_n2i4o6_w15k3s2p2d4
    n2i4o6_h8k3s2p1d2_w8k3p1        n1i2o2_w24k5p12,5d5              n1i16o16_w33k2p8,0d8
    n1i1o1_h3k2s2d2_w3k2s2d2        n2i3o4_h6k1d3_w5k2d2
"""
# Kernels of extent 1, with a stride, with few channels, with pads.
POINTWISE = """
    n2i3o5_w7k1                     n2i4o8_h6k1s2_w7k1s2             n2i4o8_h32k1s2_w32k1s2
    n2i1o8_h5k1s3_w8k1s2            n1i2o3_d3k1s2_h5k1_w4k1s3        n2i3o4_w5k1s2p1
    g2_n2i4o6_h5k1s2p0,1_w6k1s3     n2i3o16_h9k1s2p1_w8k1s3p2,0      n1i5o2_w6k1s7
    n4i64o32_h5k1_w4k1              n2i4o6_w9k1s4p-1,0               n1i3o5_h4k1p1_w6k1p2
"""
# A kernel (dilated or not) larger than the image, which only pads make room for; and one that just covers it.
KERNEL_OVER_IMAGE = """
    n2i3o4_w2k5p2                   n2i3o4_w5k5                      n1i2o3_h2k4p1_w3k7p3,4
    n1i2o3_w3k2p4d6                 n2i2o3_h1k3p1_w1k2p1,0           n1i2o3_d1k3p1_h2k5p2_w1k1
    g2_n2i4o4_w3k6s2p4,3            n2i3o2_h5k5_w4k4
"""
# Shapes for which a CPU library has been wrong, thrown or crashed.
LIBRARY_FAULTS = """
    n2i64o17_w8k3s2p1               n1i64o17_h4k3s2p1_w8k3s2p1       n1i1o1_d1k1_h12k4s4p2_w12k4s4p2
    n2i16o6_d3k2p1d3_h1k1_w1k1      n1i16o8_d7k5p9d5_h1k1_w1k1       n2i16o4_d1k1_h1k2p1d2_w3k2p1d3
    n4i3o6_w8k3s3p1,0d3             n1i1o33_h3k3p1_w17k3p1           n1i257o3_w5k3p1
"""
# Kernels wider than the vectorised kernel gradients take, which are computed in slices; some from one channel
# to one.
WIDE_KERNELS = """
    g8_n2i8o8_h9k15p7_w40k31p15     n1i3o2_h12k5p2_w33k29p14         g2_n1i4o6_w70k41s2p20,19
    n2i2o3_h20k3p1_w24k17s3p8,6     n1i16o16_w64k20p4,11d2           g4_n2i4o8_d5k2_h6k3_w30k16p3,12
    n1i1o1_h24k21p10_w24k21p10      n2i1o1_h16k15p7_w18k16s2p7,8     n1i1o1_h50k40p20,19_w48k40p20,19
    n1i2o2_w16k30p29                n1i4o4_w30k15s2p-3,9             g5_n17i5o5_h6k3p1_w10k15p7
"""
CURATED = {
    name: tuple(table.split())
    for name, table in {
        "plain": PLAIN,
        "remainder": REMAINDER,
        "uneven": UNEVEN,
        "crop": CROP,
        "large_pads": LARGE_PADS,
        "groups": GROUPS,
        "depthwise": DEPTHWISE,
        "dilated": DILATED,
        "pointwise": POINTWISE,
        "kernel_over_image": KERNEL_OVER_IMAGE,
        "library_faults": LIBRARY_FAULTS,
        "wide_kernels": WIDE_KERNELS,
    }.items()
}
ALL = tuple(text for table in CURATED.values() for text in table)

# A spread of everything in a few problems, for tests that are expensive for each one.
FEW = (
    "n2i3o5_w9k3",
    "g2_n2i4o6_w7k3s2p1",
    "n1i2o3_w6k2s3p2,-1d2",
    "g2_n1i2o4_h5k2s2p1,0_w6k3p0,2d2",
    "g3_n2i3o6_h4k3s3p1_w5k2",
    "n1i2o3_d3k2_h4k1s2_w5k3s2p1,2",
)

# Somewhere an extent is zero: batch, channels of either side, input or output.
ZERO_EXTENTS = tuple(
    """
    n0i3o4_w5k3                     n0i3o4_h5k3s2p1_w6k2             n2i32o2_h0k2p1_w5k2p1
    n2i3o2_h0k2p1_w5k2p1            n2i0o4_w5k3                      n2i3o0_w5k3
    n1i1o1_w1k2                     n2i3o4_w0k1                      n2i3o4_w4k2p-2
    n2i3o4_w2k5                     n2i3o4_h5k2_w3k4                 g2_n0i4o6_w7k3s2p1
    g2_n2i0o4_w5k3                  g2_n2i4o0_w5k3                   n0i2o3_d3k2_h4k3_w5k1
    n1i2o3_d3k2_h0k1_w5k2           n0i0o0_w3k2                      n2i3o4_w0k3s2p1,2
    n1i2o3_w0k1s2                   n1i2o3_w1k1s2p0,-1
    """.split()
)

# What no native kernel takes: no spatial axis, four and five of them.
OTHER_RANKS = (
    "n3i4o5",
    "g2_n3i4o6",
    "n1i2o3_a3k2_b4k3s2p1_c5k1_d2k2p1,0",
    "g2_n2i4o2_a2k1_b3k2d2_c4k3s3p1_d5k2s2",
    "n1i1o2_a2k2_b3k1_c2k2p1_d3k2s2_e2k1",
)
