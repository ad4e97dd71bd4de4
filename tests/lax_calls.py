"""Calls of `lax.conv_general_dilated`: what one is, random ones, and the oracle for them in NumPy."""

import dataclasses

import harness
import hypothesis
import jax
import numpy as np
import reference
from hypothesis import strategies as st
from jax import lax

from jax_cudnn_conv import _canonical


@dataclasses.dataclass(frozen=True)
class Call:
    """The sizes of one call, of channels-first arrays; `orders` are the positions that their axes get.

    Tuples have one entry per spatial axis. `n`, `c` and `o` are the extents of one group.
    """

    n: int
    c: int
    o: int
    extents: tuple
    kernel: tuple
    strides: tuple
    pads: tuple
    lhs_dilation: tuple
    rhs_dilation: tuple
    features: int = 1
    batches: int = 1
    orders: tuple | None = None
    dtype: str = "float64"

    @property
    def shapes(self):
        groups = self.features * self.batches
        lhs = (self.n * self.batches, self.c * self.features, *self.extents)
        return lhs, (self.o * groups, self.c, *self.kernel)

    @property
    def spread(self):
        """The extents of lhs with zeros between its elements."""
        return tuple(max(d * (x - 1) + 1, 0) for x, d in zip(self.extents, self.lhs_dilation, strict=True))

    @property
    def outputs(self):
        extents = map(
            reference.conv_extent, self.spread, self.kernel, self.strides, self.pads, self.rhs_dilation
        )
        return tuple(extents)

    @property
    def keywords(self):
        return {
            "window_strides": self.strides,
            "padding": self.pads,
            "lhs_dilation": self.lhs_dilation,
            "rhs_dilation": self.rhs_dilation,
            "feature_group_count": self.features,
            "batch_group_count": self.batches,
            "dimension_numbers": lax.ConvDimensionNumbers(*self._orders),
        }

    @property
    def _orders(self):
        return self.orders or (tuple(range(2 + len(self.extents))),) * 3

    def place(self, tensor, array):
        """A channels-first lhs, rhs or result (0, 1, 2) in this call's order and dtype."""
        placed = np.transpose(array, np.argsort(self._orders[tensor]))
        return np.ascontiguousarray(harness.rounded(placed, self.dtype))

    def draw(self, seed):
        """Channels-first arrays of integers in [-4, 4]: lhs, rhs, one more of each, and a cotangent."""
        rng = np.random.default_rng(seed)
        y = (self.n, self.shapes[1][0], *self.outputs)
        return [rng.integers(-4, 5, shape).astype(np.float64) for shape in (*self.shapes * 2, y)]


def _blocks(call, lhs, rhs, y=None):
    """Each batch group's parts: lhs spread apart, rhs, and the result if it is given."""
    spread = np.zeros((*lhs.shape[:2], *call.spread))
    spread[(..., *(slice(None, None, d) for d in call.lhs_dilation))] = lhs
    parts = [np.split(spread, call.batches, 0), np.split(rhs, call.batches, 0)]
    parts.append(np.split(y, call.batches, 1) if y is not None else [None] * call.batches)
    return list(zip(*parts, strict=True))


def _geometry(call):
    return call.strides, call.pads, call.rhs_dilation, call.features


def value(call, lhs, rhs):
    """The result, channels first as all here."""
    blocks = [reference.conv(x, w, *_geometry(call)) for x, w, _ in _blocks(call, lhs, rhs)]
    return np.concatenate(blocks, 1)


def by_lhs(call, lhs, rhs, y):
    """The gradient of <value, y> by lhs."""
    blocks = [
        reference.conv_dx(v, w, call.spread, *_geometry(call)) for _, w, v in _blocks(call, lhs, rhs, y)
    ]
    return np.concatenate(blocks, 0)[(..., *(slice(None, None, d) for d in call.lhs_dilation))]


def by_rhs(call, lhs, rhs, y):
    """The gradient of <value, y> by rhs."""
    blocks = [
        reference.conv_dw(x, v, call.kernel, *_geometry(call)) for x, _, v in _blocks(call, lhs, rhs, y)
    ]
    return np.concatenate(blocks, 0)


def check_value(call, function, seed=0):
    """`function`, such as `lax.conv_general_dilated`, on one call, exactly."""
    lhs, rhs, *_ = call.draw(seed)
    result = jax.jit(lambda lhs, rhs: function(lhs, rhs, **call.keywords))(
        call.place(0, lhs), call.place(1, rhs)
    )
    harness.assert_equal(result, call.place(2, value(call, lhs, rhs)), f"value of {call}")


def check(call, function, seed=0):
    """The same with its derivatives."""
    lhs, rhs, dl, dr, ct = call.draw(seed)

    def everything(lhs, rhs, dl, dr, ct):
        f = lambda lhs, rhs: function(lhs, rhs, **call.keywords)  # noqa: E731
        _, tangent = jax.jvp(f, (lhs, rhs), (dl, dr))
        out, vjp = jax.vjp(f, lhs, rhs)
        return out, tangent, *vjp(ct)

    places = (0, 1, 0, 1, 2)
    arguments = [call.place(t, a) for t, a in zip(places, (lhs, rhs, dl, dr, ct), strict=True)]
    results = jax.jit(everything)(*arguments)
    expected = [
        (2, value(call, lhs, rhs)),
        (2, value(call, dl, rhs) + value(call, lhs, dr)),
        (0, by_lhs(call, lhs, rhs, ct)),
        (1, by_rhs(call, lhs, rhs, ct)),
    ]
    for name, result, (t, wanted) in zip(
        ("value", "jvp", "by lhs", "by rhs"), results, expected, strict=True
    ):
        harness.assert_equal(result, call.place(t, wanted), f"{name} of {call}")


def abstract(call):
    return [
        jax.ShapeDtypeStruct(call.place(tensor, np.zeros(shape)).shape, call.dtype)
        for tensor, shape in enumerate(call.shapes)
    ]


def chosen(call):
    """The primitive for a call, or None for XLA."""
    jaxpr = jax.make_jaxpr(lambda a, b: lax.conv_general_dilated(a, b, **call.keywords))(*abstract(call))
    return of_equation(jaxpr.eqns[-1])


def of_equation(equation):
    shapes = (v.aval.shape for v in (*equation.invars, *equation.outvars))
    plan = _canonical.plan(*shapes, equation.params)
    return plan and plan.direction.primitive.name + " swapped" * plan.swapped


def convolutions(function, *arguments):
    return [e for e in jax.make_jaxpr(function)(*arguments).eqns if e.primitive is lax.conv_general_dilated_p]


@st.composite
def calls(draw, ordinary=False):
    """Any call that JAX takes and that computes something; an `ordinary` one has no lhs dilation."""
    rank = draw(st.sampled_from((1, 1, 2, 2, 3, 0)))
    most = {0: 1, 1: 16, 2: 8, 3: 5}[rank]
    steps = st.sampled_from((1, 1, 1, 2, 3))
    axes = []
    for _ in range(rank):
        pads = draw(st.tuples(*(st.integers(0, 2) | st.integers(-3, 6),) * 2))
        axis = (draw(st.integers(1, most)), draw(st.integers(1, 3) | st.integers(1, most)), draw(steps), pads)
        axes.append((*axis, 1 if ordinary else draw(steps), draw(steps)))
    columns = list(zip(*axes, strict=True)) if axes else [()] * 6
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    features, batches = (groups, 1) if ordinary or draw(st.booleans()) else (1, groups)
    orders = None
    if draw(st.booleans()):
        orders = tuple(tuple(draw(st.permutations(range(2 + rank)))) for _ in range(3))
    sizes = (draw(st.integers(1, 4)) for _ in range(3))
    dtype = draw(st.sampled_from(("float64", "float64", "float32")))
    call = Call(*sizes, *columns, features, batches, orders, dtype)
    hypothesis.assume(
        all(x + lo + hi >= 0 for x, (lo, hi) in zip(call.spread, call.pads, strict=True))
        and 0 not in call.outputs
        and np.prod(call.outputs) * np.prod(call.kernel) < 2**14
    )
    return call
