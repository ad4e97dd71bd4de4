"""The geometry of a convolution, and the arithmetic of its sizes. Nothing here knows JAX.

One convolution couples three tensors; with the ``groups`` pulled out of the channels,

    x: (N, G*I, x_spatial)    w: (G*O, I, w_spatial)    y: (N, G*O, y_spatial)

A :class:`ConvSpec` holds what the three have in common. ``N``, ``O`` and ``I`` are not part of it: any
two of the tensors determine them.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

Role: TypeAlias = Literal["x", "w", "y"]
Ints: TypeAlias = tuple[int, ...]
Pads: TypeAlias = tuple[tuple[int, int], ...]


def effective_kernel(kernel: int, dilation: int) -> int:
    """The number of input elements a dilated kernel of ``kernel`` taps spans."""
    return dilation * (kernel - 1) + 1


def output_extent(extent: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int) -> int:
    """The extent of y: how many times the kernel fits into the padded input, never below zero."""
    room = extent + pads[0] + pads[1] - effective_kernel(kernel, dilation)
    if isinstance(room, int):
        return max(room // stride + 1, 0)
    return room // stride + 1  # a symbolic dimension of jax.export, assumed to hold the kernel


def string_padding(padding: str, spatial: Ints, kernel: Ints, strides: Ints, dilation: Ints) -> Pads:
    """The (low, high) pads that "SAME", "SAME_LOWER" or "VALID" stand for, in any case.

    SAME pads so that y has ``ceil(extent / stride)`` elements and puts the odd unit high, SAME_LOWER
    puts it low (TensorFlow's and XLA's definition).
    """
    kind = padding.upper()
    if kind == "VALID":
        return ((0, 0),) * len(spatial)
    pads = []
    for extent, k, s, d in zip(spatial, kernel, strides, dilation, strict=True):
        total = (-(-extent // s) - 1) * s + effective_kernel(k, d) - extent
        total = max(total, 0)
        low = (total + 1) // 2 if kind == "SAME_LOWER" else total // 2
        pads.append((low, total - low))
    return tuple(pads)


def transposed_extents(
    padding: str | Pads, spatial: Ints, kernel: Ints, strides: Ints, dilation: Ints
) -> tuple[Ints, Pads]:
    """The extents of x that a convolution with ``padding`` maps to ``spatial``, and its pads.

    Several extents qualify when the stride leaves a remainder. The one chosen is ``L*s`` for SAME,
    ``L*s + max(d(K-1)+1-s, 0)`` for VALID and the smallest, ``(L-1)s + d(K-1)+1 - low - high``, for
    explicit pads. Extents may come out negative: the caller reports that.
    """
    if isinstance(padding, str) and padding.upper() == "VALID":
        extents = tuple(
            length * s + max(effective_kernel(k, d) - s, 0)
            for length, k, s, d in zip(spatial, kernel, strides, dilation, strict=True)
        )
        return extents, string_padding(padding, extents, kernel, strides, dilation)
    if isinstance(padding, str):
        extents = tuple(length * s for length, s in zip(spatial, strides, strict=True))
        return extents, string_padding(padding, extents, kernel, strides, dilation)
    extents = tuple(
        (length - 1) * s + effective_kernel(k, d) - low - high
        for length, k, s, d, (low, high) in zip(spatial, kernel, strides, dilation, padding, strict=True)
    )
    return extents, padding


@dataclasses.dataclass(frozen=True)
class ConvSpec:
    """The geometry of one convolution: hashable, and the same for all three directions.

    ``x_dims``, ``w_dims`` and ``y_dims`` give the position of each logical axis in the array: batch (or
    output features, for w), channels (or input features), then the spatial axes. Extents, ``strides``,
    ``padding`` and ``dilation`` have one entry per spatial axis, in the order of those positions.
    Dilation counts from 1 (1 is none). Negative pads crop.
    """

    x_dims: Ints
    w_dims: Ints
    y_dims: Ints
    x_spatial: Ints
    w_spatial: Ints
    strides: Ints
    padding: Pads
    dilation: Ints
    groups: int

    @property
    def rank(self) -> int:
        """The number of spatial axes."""
        return len(self.w_spatial)

    @property
    def y_spatial(self) -> Ints:
        """The spatial extents of y, which follow from those of x and w."""
        return tuple(
            map(
                output_extent,
                self.x_spatial,
                self.w_spatial,
                self.strides,
                self.padding,
                self.dilation,
            )
        )

    def dims(self, role: Role) -> Ints:
        """The positions of the logical axes of x, w or y."""
        return {"x": self.x_dims, "w": self.w_dims, "y": self.y_dims}[role]

    def shape(self, role: Role, n: int, o: int, i: int) -> Ints:
        """The shape of x, w or y for batch ``n`` and ``o`` output and ``i`` input features a group."""
        logical = {
            "x": (n, self.groups * i, *self.x_spatial),
            "w": (self.groups * o, i, *self.w_spatial),
            "y": (n, self.groups * o, *self.y_spatial),
        }[role]
        shape = [0] * len(logical)
        for position, extent in zip(self.dims(role), logical, strict=True):
            shape[position] = extent
        return tuple(shape)

    def features(self, role: Role, shape: Sequence[int]) -> dict[str, int]:
        """What the shape of one tensor says about N and the per-group O and I."""
        first, second = (shape[d] for d in self.dims(role)[:2])
        return {
            "x": {"n": first, "i": second // self.groups},
            "w": {"o": first // self.groups, "i": second},
            "y": {"n": first, "o": second // self.groups},
        }[role]

    def factors(self, role: Role) -> list[str]:
        """A name for each axis of a tensor; axes of two tensors with the same name are the same index.

        The batch is ``n``; the features are ``o`` and ``i`` where no groups divide them.
        """
        shared = {"x": ["n", "i"], "w": ["o", "i"], "y": ["n", "o"]}[role]
        if self.groups > 1:
            shared = [f if f == "n" else f"{role}_{f}" for f in shared]
        names = [""] * (2 + self.rank)
        spatial = [f"{role}{k}" for k in range(self.rank)]
        for position, name in zip(self.dims(role), (*shared, *spatial), strict=True):
            names[position] = name
        return names

    def exact_padding(self) -> Pads:
        """The pads that leave no remainder: the high one may crop what no kernel tap ever reads."""
        return tuple(
            (low, (out - 1) * s + effective_kernel(k, d) - extent - low)
            for extent, out, k, s, d, (low, _) in zip(
                self.x_spatial,
                self.y_spatial,
                self.w_spatial,
                self.strides,
                self.dilation,
                self.padding,
                strict=True,
            )
        )


#: The factors that may be split over devices.
SPLITTABLE = ("n", "o", "i")


def split_axes(factors: Sequence[Sequence[str]], specs: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """The mesh axes over which each splittable factor is split, from the partition specs of tensors.

    Where tensors disagree the first wins, and a mesh axis splits one factor only.
    """
    axes: dict[str, Any] = {}
    for names, spec in zip(factors, specs, strict=True):
        for name, axis in zip(names, spec, strict=False):
            if name in SPLITTABLE and axis is not None and axis not in axes.values():
                axes.setdefault(name, axis)
    return axes
