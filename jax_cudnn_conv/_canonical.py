"""Which of the three primitives a `jax.lax.conv_general_dilated` is, and how its arrays become theirs.

*One relation.* On one axis let p, k and q index lhs, rhs and result, and let `ld`, `rd`, `s` and `lo` be lhs
dilation, rhs dilation, window stride and low pad. Output q meets tap k in input p where

    ld*p + lo = rd*k + s*q,            and in a ConvSpec    x + low = stride*y + dilation*w.

The two are the same relation between three indices: whichever tensor is called x needs coefficient 1, the
other two may have any, and are y and w in either order. (The coefficient of an axis of extent 1 does not
matter, as its only index is 0.) On the left all signs but that of x must be the same, which reversing one
tensor, k' = K-1-k or q' = Q-1-q, brings about:

    x is    needs    reversed   low pad          the other two are (w, y)
    lhs     ld = 1   nothing    lo               (rhs, result): conv_fwd      (result, rhs): conv_wgrad
    result  s = 1    rhs        rd*(K-1) - lo    (rhs, lhs): conv_dgrad       (lhs, rhs): conv_dgrad
    rhs     rd = 1   result     s*(Q-1) - lo     (result, lhs): conv_wgrad    (lhs, result): conv_fwd

All axes of a problem must agree; where no row fits them all there is no plan, and XLA has the convolution.
The high pad follows: `stride*(Y-1) + dilation*(W-1) + 1 - X - low` leaves no remainder. Pads may be negative.

*Features.* Batch n is in lhs and result, summed features c in lhs and rhs, output features o in rhs and
result. A factor that two tensors share is N, O or I according to their roles: N where they are x and y, O for
w and y, I for x and w. So dimension numbers are renamed, and nothing moves. All three tensors share the
groups. In lax they are a part of o and, in lhs, of c (feature groups) or n (batch groups); in a ConvSpec they
are a part of x's and y's features and of w's O. Where that is another axis they move.

*The choice* where several rows fit. Every position of w meets every one of y, so the work is the product of
their extents: rows that take twice the least or more drop out. Of the others, w should be no larger than y;
then few arrays be reversed or have groups moved; then the order is that of the table. So a kernel "as large
as the image" with a small result is `conv_wgrad`: that is JAX's derivative of an ordinary convolution by its
kernel, which with stride 1 and without groups has the arguments of a forward one. JAX's derivative by the
input, with stride 1, is a forward convolution with the reversed kernel, and stays one.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import jax
from jax import export, lax

from jax_cudnn_conv._primitives import DIRECTIONS, Direction, bind, fold, unfold
from jax_cudnn_conv._spec import ConvSpec, Ints, Role

Tensor: TypeAlias = Literal["lhs", "rhs", "out"]
Move: TypeAlias = tuple[int, int]  # the groups leave the first axis and become the outer part of the second

_TENSORS: tuple[Tensor, ...] = ("lhs", "rhs", "out")
#: The tensors in the roles x, w and y: the table above, row by row.
_ROWS: tuple[dict[Role, Tensor], ...] = (
    {"x": "lhs", "w": "rhs", "y": "out"},
    {"x": "lhs", "w": "out", "y": "rhs"},
    {"x": "out", "w": "rhs", "y": "lhs"},
    {"x": "out", "w": "lhs", "y": "rhs"},
    {"x": "rhs", "w": "out", "y": "lhs"},
    {"x": "rhs", "w": "lhs", "y": "out"},
)
_REVERSED: dict[Tensor, Tensor | None] = {"lhs": None, "out": "rhs", "rhs": "out"}


@dataclasses.dataclass(frozen=True)
class Plan:
    """How one primitive computes a `conv_general_dilated`.

    ``swapped``: lhs is the primitive's second operand. ``reverse``: the axes to reverse, and ``move``: the
    groups to move, of rhs and lhs beforehand and of the result afterwards.
    """

    direction: Direction
    spec: ConvSpec
    swapped: bool
    reverse: dict[Tensor, Ints]
    move: dict[Tensor, Move]

    def operands(self, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        """The primitive's two operands."""
        lhs = self._moved("lhs", lhs)
        rhs = self._moved("rhs", _reversed(rhs, self.reverse.get("rhs", ())))
        return (rhs, lhs) if self.swapped else (lhs, rhs)

    def precision(self, precision: Any) -> Any:
        """The precisions of the operands, which lax has for lhs and rhs."""
        return precision[::-1] if self.swapped and isinstance(precision, tuple) else precision

    def __call__(self, lhs: Any, rhs: Any, *, precision: Any, **params: Any) -> jax.Array:
        """Bind the primitive. ``params`` as in `_primitives.bind`."""
        first, second = self.operands(lhs, rhs)
        params["precision"] = self.precision(precision)
        out = bind(self.direction, first, second, spec=self.spec, **params)
        return _reversed(self._moved("out", out), self.reverse.get("out", ()))

    def _moved(self, tensor: Tensor, a: Any) -> Any:
        if tensor not in self.move:
            return a
        source, target = self.move[tensor]
        a, groups = unfold(a, self.spec.groups, source, 1)
        return fold(a, groups, target, 1)


def _reversed(a: Any, axes: Ints) -> Any:
    return lax.rev(a, axes) if axes else a


class _Problem:
    """A `conv_general_dilated` by tensor: positions of its axes, spatial extents, coefficients, low pads."""

    def __init__(self, lhs, rhs, out, params: dict[str, Any], rhs_reversed: bool):
        self.shapes: dict[Tensor, Sequence[Any]] = {"lhs": lhs, "rhs": rhs, "out": out}
        dims = params["dimension_numbers"]
        self.dims: dict[Tensor, Ints] = {
            "lhs": _ints(dims.lhs_spec),
            "rhs": _ints(dims.rhs_spec),
            "out": _ints(dims.out_spec),
        }
        self.extents = {t: tuple(self.shapes[t][d] for d in self.dims[t][2:]) for t in _TENSORS}
        self.coefficients: dict[Tensor, Ints] = {
            "lhs": _ints(params["lhs_dilation"]),
            "rhs": _ints(params["rhs_dilation"]),
            "out": _ints(params["window_strides"]),
        }
        self.padding = tuple((int(low), int(high)) for low, high in params["padding"])
        features, batch = int(params["feature_group_count"]), int(params["batch_group_count"])
        self.groups = features * batch  # at most one of them is not 1
        self.groups_at: dict[Tensor, int] = {
            "lhs": self.dims["lhs"][0 if batch > 1 else 1],
            "rhs": self.dims["rhs"][0],
            "out": self.dims["out"][1],
        }
        self.rhs_reversed = rhs_reversed

    def shared(self, a: Tensor, b: Tensor) -> int:
        """The axis of tensor ``a`` that it shares with ``b``: its n, c or o."""
        first: dict[Tensor, Tensor] = {"lhs": "out", "rhs": "out", "out": "lhs"}
        return self.dims[a][0 if first[a] == b else 1]

    def fits(self, row: dict[Role, Tensor]) -> bool:
        """Does x have coefficient 1 wherever that matters?"""
        x = row["x"]
        axes = zip(self.coefficients[x], self.extents[x], strict=True)
        return all(c == 1 or extent == 1 for c, extent in axes)

    def work(self, row: dict[Role, Tensor]) -> int:
        return math.prod(self.extents[row["w"]]) * math.prod(self.extents[row["y"]])

    def reverse(self, row: dict[Role, Tensor]) -> dict[Tensor, Ints]:
        tensors = {t for t in (_REVERSED[row["x"]],) if t is not None}
        if self.rhs_reversed:
            tensors ^= {"rhs"}
        axes = {t: tuple(d for d in self.dims[t][2:] if self.shapes[t][d] != 1) for t in tensors}
        return {t: a for t, a in axes.items() if a}

    def move(self, row: dict[Role, Tensor]) -> dict[Tensor, Move]:
        if self.groups == 1:
            return {}
        wanted = {row[role]: self.spec_dims(row)[role][0 if role == "w" else 1] for role in row}
        moves: dict[Tensor, Move] = {
            t: (self.groups_at[t], wanted[t]) for t in _TENSORS if self.groups_at[t] != wanted[t]
        }
        if "out" in moves:
            moves["out"] = moves["out"][::-1]
        return moves

    def spec_dims(self, row: dict[Role, Tensor]) -> dict[Role, Ints]:
        x, w, y = row["x"], row["w"], row["y"]
        axes: dict[Role, Ints] = {
            "x": (self.shared(x, y), self.shared(x, w)),
            "w": (self.shared(w, y), self.shared(w, x)),
            "y": (self.shared(y, x), self.shared(y, w)),
        }
        return {role: (*axes[role], *self.dims[row[role]][2:]) for role in axes}

    def spec(self, row: dict[Role, Tensor]) -> ConvSpec:
        x, w, y = row["x"], row["w"], row["y"]
        padding = self.padding
        if row != _ROWS[0]:
            turned = _REVERSED[x]
            exact = []
            for axis, (low, _) in enumerate(padding):
                if turned is not None:
                    low = self.coefficients[turned][axis] * (self.extents[turned][axis] - 1) - low
                reach = sum(self.coefficients[t][axis] * (self.extents[t][axis] - 1) for t in (w, y))
                exact.append((low, reach + 1 - self.extents[x][axis] - low))
            padding = tuple(exact)
        dims = self.spec_dims(row)
        return ConvSpec(
            x_dims=dims["x"],
            w_dims=dims["w"],
            y_dims=dims["y"],
            x_spatial=self.extents[x],
            w_spatial=self.extents[w],
            strides=self.coefficients[y],
            padding=padding,
            dilation=self.coefficients[w],
            groups=self.groups,
        )


def _ints(values: Any) -> Ints:
    return tuple(map(int, values))


def plan(
    lhs: Sequence[Any], rhs: Sequence[Any], out: Sequence[Any], params: Any, *, rhs_reversed: bool = False
) -> Plan | None:
    """The primitive that computes a convolution, or None where only XLA does.

    Args:
      lhs, rhs, out: the shapes of operands and result; the spatial extents may be symbolic for `conv_fwd`.
      params: the parameters of `jax.lax.conv_general_dilated_p`, checked by JAX.
      rhs_reversed: rhs is meant to be reversed on its spatial axes, which are not yet.
    """
    if any(export.is_symbolic_dim(p) for pair in params["padding"] for p in pair):
        return None
    if 0 in (*lhs, *rhs, *out):
        return None
    if not isinstance(params["precision"], (type(None), tuple, lax.DotAlgorithmPreset)):
        return None
    problem = _Problem(lhs, rhs, out, params, rhs_reversed)
    known = all(isinstance(e, int) for extents in problem.extents.values() for e in extents)
    rows = [row for row in (_ROWS if known else _ROWS[:1]) if problem.fits(row)]
    if not rows:
        return None
    if known:
        least = min(map(problem.work, rows))
        rows = [row for row in rows if problem.work(row) < 2 * least]
        rows.sort(key=lambda row: _preference(problem, row))
    row = rows[0]
    (result,) = (role for role, tensor in row.items() if tensor == "out")
    (direction,) = (d for d in DIRECTIONS if d.result == result)
    return Plan(
        direction=direction,
        spec=problem.spec(row),
        swapped=row[direction.operands[0]] != "lhs",
        reverse=problem.reverse(row),
        move=problem.move(row),
    )


def _preference(problem: _Problem, row: dict[Role, Tensor]) -> tuple[Any, ...]:
    """The lower, the better."""
    kernel, image = (math.prod(problem.extents[row[role]]) for role in ("w", "y"))
    return kernel > image, len(problem.move(row)) + len(problem.reverse(row))
