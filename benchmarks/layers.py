"""The layers of the benchmark: one line each, channels last, without the batch.

    network/layer   SPATIAL x IN -> OUT   geometry   # note

`->` is a convolution, `~>` a transposed one. The geometry is a string of letters, each followed by
one number for all axes: `k` kernel, `s` stride, `d` dilation (1 is none), `g` groups, `p` padding
on both sides, or `p4-0` for low and high. Absent letters are s1 d1 g1 p0. A transposed convolution
takes the padding of the convolution that it transposes: `p1` belongs to k4s2, and the output is
`(L-1)*s + k - 2*p` wide.

The shapes are those of the networks; `scaled` in a note says which extents were cut so that the
slowest reference kernel stays within seconds. `g=` equal to the channels is a depthwise layer.
"""

import dataclasses
import math
import re

TABLE = """
resnet50/conv1             224x224x3 -> 64       k7s2p3
resnet50/res2a_1x1a        56x56x64 -> 64        k1
resnet50/res2a_3x3         56x56x64 -> 64        k3p1
resnet50/res2a_1x1b        56x56x64 -> 256       k1
resnet50/res2b_1x1a        56x56x256 -> 64       k1
resnet50/res3a_proj        56x56x256 -> 512      k1s2
resnet50/res3a_1x1a        56x56x256 -> 128      k1s2
resnet50/res3a_3x3         28x28x128 -> 128      k3p1
resnet50/res3a_1x1b        28x28x128 -> 512      k1
resnet50/res3b_1x1a        28x28x512 -> 128      k1
resnet50/res4a_proj        28x28x512 -> 1024     k1s2
resnet50/res4a_1x1a        28x28x512 -> 256      k1s2
resnet50/res4a_3x3         14x14x256 -> 256      k3p1
resnet50/res4a_1x1b        14x14x256 -> 1024     k1
resnet50/res4b_1x1a        14x14x1024 -> 256     k1
resnet50/res5a_proj        14x14x1024 -> 2048    k1s2
resnet50/res5a_1x1a        14x14x1024 -> 512     k1s2
resnet50/res5a_3x3         7x7x512 -> 512        k3p1
resnet50/res5a_1x1b        7x7x512 -> 2048       k1
resnet50/res5b_1x1a        7x7x2048 -> 512       k1

mobilenet/conv2_1_dw       112x112x32 -> 32      k3p1g32
mobilenet/conv2_2_dw       112x112x64 -> 64      k3s2p1g64
mobilenet/conv3_1_dw       56x56x128 -> 128      k3p1g128
mobilenet/conv3_2_dw       56x56x128 -> 128      k3s2p1g128
mobilenet/conv4_1_dw       28x28x256 -> 256      k3p1g256
mobilenet/conv4_2_dw       28x28x256 -> 256      k3s2p1g256
mobilenet/conv5_1_dw       14x14x512 -> 512      k3p1g512
mobilenet/conv5_6_dw       14x14x512 -> 512      k3s2p1g512
mobilenet/conv6_dw         7x7x1024 -> 1024      k3p1g1024

resnext101/conv3           20x20x512 -> 512      k3p1g32     # scaled from 56x56
resnext101/conv8           28x28x1024 -> 1024    k3s2p1g32   # scaled from 56x56
resnext101/conv12          14x14x1024 -> 1024    k3p1g32     # scaled from 28x28
resnext101/conv14          14x14x2048 -> 2048    k3s2p1g32   # scaled from 28x28
resnext101/conv18          14x14x2048 -> 2048    k3p1g32
resnext101/conv20          14x14x4096 -> 4096    k3s2p1g32
resnext101/conv24          7x7x4096 -> 4096      k3p1g32

unet/up1                   14x14x1024 ~> 512     k2s2        # scaled from 28x28
unet/up2                   26x26x512 ~> 256      k2s2        # scaled from 52x52
unet/up3                   50x50x256 ~> 128      k2s2        # scaled from 100x100
unet/up4                   64x64x128 ~> 64       k2s2        # scaled from 196x196
unet/thin_up3              136x136x64 ~> 32      k2s2
unet/thin_up4              268x268x32 ~> 16      k2s2
unet/dcgan2                4x4x1024 ~> 512       k4s2p1
unet/dcgan3                8x8x512 ~> 256        k4s2p1
unet/dcgan4                16x16x256 ~> 128      k4s2p1
unet/dcgan5                32x32x128 ~> 3        k4s2p1

wavenet/d1                 16384x32 -> 32        k2d1p1-0
wavenet/d2                 16384x32 -> 32        k2d2p2-0
wavenet/d8                 16384x32 -> 32        k2d8p8-0
wavenet/d32                16384x32 -> 32        k2d32p32-0
wavenet/d128               16384x32 -> 32        k2d128p128-0
wavenet/d512               16384x32 -> 32        k2d512p512-0
wavenet/residual           16384x32 -> 32        k1
wavenet/skip               16384x32 -> 512       k1
wavenet/post               812x512 -> 512        k1

unet3d/conv1               44x44x38x3 -> 32      k3          # scaled from 132x132x116
unet3d/conv2               34x34x30x32 -> 64     k3          # scaled from 130x130x114
unet3d/conv3               24x24x21x64 -> 64     k3          # scaled from 64x64x56
unet3d/conv4               20x20x17x64 -> 128    k3          # scaled from 62x62x54
unet3d/conv5               16x16x14x128 -> 128   k3          # scaled from 30x30x28
unet3d/conv6               14x14x13x128 -> 256   k3          # scaled from 28x28x26
unet3d/conv7               13x13x12x256 -> 256   k3
unet3d/conv8               11x11x10x256 -> 512   k3
unet3d/up1                 4x4x4x512 ~> 512      k2s2        # scaled from 9x9x8
unet3d/up2                 6x6x6x256 ~> 256      k2s2        # scaled from 18x18x16
"""

_LINE = re.compile(
    r"(?P<network>\w+)/(?P<layer>\w+)\s+(?P<extents>[\dx]+)\s*(?P<arrow>->|~>)\s*(?P<out>\d+)"
    r"\s+(?P<geometry>[\w-]+)\s*(?:#\s*(?P<note>.*))?"
)


@dataclasses.dataclass(frozen=True)
class Layer:
    """One line of the table; all extents are for one example."""

    network: str
    layer: str
    transposed: bool
    spatial: tuple[int, ...]
    in_channels: int
    out_channels: int
    kernel: int
    stride: int
    dilation: int
    groups: int
    padding: tuple[int, int]
    note: str

    @property
    def name(self) -> str:
        return f"{self.network}/{self.layer}"

    @property
    def dimension_numbers(self) -> tuple[str, str, str]:
        axes = "DHW"[-len(self.spatial) :]
        return f"N{axes}C", f"{axes}IO", f"N{axes}C"

    @property
    def out_spatial(self) -> tuple[int, ...]:
        reach, pads = self.dilation * (self.kernel - 1) + 1, sum(self.padding)
        if self.transposed:
            return tuple((n - 1) * self.stride + reach - pads for n in self.spatial)
        return tuple((n + pads - reach) // self.stride + 1 for n in self.spatial)

    @property
    def kernel_shape(self) -> tuple[int, ...]:
        window = (self.kernel,) * len(self.spatial)
        if self.transposed:
            return (*window, self.out_channels // self.groups, self.in_channels)
        return (*window, self.in_channels // self.groups, self.out_channels)

    def input_shape(self, batch: int) -> tuple[int, ...]:
        return (batch, *self.spatial, self.in_channels)

    def output_shape(self, batch: int) -> tuple[int, ...]:
        return (batch, *self.out_spatial, self.out_channels)

    def flops(self, batch: int) -> int:
        """Multiplications and additions, padding counted; the same for all three directions."""
        positions = self.spatial if self.transposed else self.out_spatial
        return 2 * batch * math.prod(positions) * math.prod(self.kernel_shape)


def parse(line: str) -> Layer:
    """Reads one line of the table."""
    match = _LINE.fullmatch(line.strip())
    if match is None:
        raise ValueError(f"not a layer: {line!r}; want 'network/layer 56x56x64 -> 64 k3p1'")
    *spatial, in_channels = (int(n) for n in match["extents"].split("x"))
    geometry = dict(re.findall(r"([a-z])(\d+(?:-\d+)?)", match["geometry"]))
    if "".join(key + value for key, value in geometry.items()) != match["geometry"]:
        raise ValueError(f"not a geometry: {match['geometry']!r} in {line!r}; want e.g. 'k3s2p1'")
    low, _, high = geometry.get("p", "0").partition("-")
    return Layer(
        network=match["network"],
        layer=match["layer"],
        transposed=match["arrow"] == "~>",
        spatial=tuple(spatial),
        in_channels=in_channels,
        out_channels=int(match["out"]),
        kernel=int(geometry["k"]),
        stride=int(geometry.get("s", 1)),
        dilation=int(geometry.get("d", 1)),
        groups=int(geometry.get("g", 1)),
        padding=(int(low), int(high or low)),
        note=match["note"] or "",
    )


LAYERS = tuple(parse(line) for line in TABLE.splitlines() if line.strip())


def cheapest(layers: tuple[Layer, ...], count: int) -> tuple[Layer, ...]:
    """The `count` layers of each network with the fewest operations, in the table's order."""
    keep = set()
    for network in {layer.network for layer in layers}:
        mine = [layer for layer in layers if layer.network == network]
        keep.update(sorted(mine, key=lambda layer: layer.flops(1))[:count])
    return tuple(layer for layer in layers if layer in keep)
