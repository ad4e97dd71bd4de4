"""Compares the values of two compiled functions, then times them against each other."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np

# Largest difference, relative to the largest element. bf16 and f16 have 8 and 11 significant bits.
TOLERANCE = {"f32": 1e-4, "bf16": 1e-2, "f16": 2e-3, "f64": 1e-6}


@dataclasses.dataclass(frozen=True)
class Case:
    """One row: two functions of the same arguments, which already lie on the device."""

    section: str
    network: str
    layer: str
    batch: int
    direction: str
    dtype: str
    gflop: float
    ours: Callable[..., jax.Array]
    reference: Callable[..., jax.Array]
    args: tuple[jax.Array, ...]


@dataclasses.dataclass(frozen=True)
class Budget:
    """How long one row may take.

    A measurement lasts `min_time` seconds and at least `min_pairs` pairs, but stops at `max_time`.
    One whose quartiles lie further apart than `spread` of the median is repeated, up to `retries`
    times and while the row is below `max_time`; the measurement with the least spread counts. A
    reference that takes longer than `max_time` is timed once.
    """

    min_time: float = 0.3
    max_time: float = 1.2
    min_pairs: int = 9
    spread: float = 0.15
    retries: int = 2


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The quartiles; all are the mean of the values when there is only one."""
    if len(values) < 2:
        return (values[0],) * 3
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def difference(got: jax.Array, want: jax.Array) -> float:
    """The largest difference relative to the largest wanted element; NaN never passes a bound."""
    if got.shape != want.shape or got.dtype != want.dtype:
        raise ValueError(f"{got.shape} {got.dtype} where lax has {want.shape} {want.dtype}")
    got32, want32 = np.asarray(got, np.float32), np.asarray(want, np.float32)
    scale = float(np.max(np.abs(want32), initial=0.0))
    return float(np.max(np.abs(got32 - want32), initial=0.0)) / (scale or 1.0)


def run(case: Case, budget: Budget) -> dict[str, object]:
    """Checks one case and times it; the result is a row of the report."""
    row: dict[str, object] = {
        name: getattr(case, name)
        for name in ("section", "network", "layer", "batch", "direction", "dtype", "gflop")
    }
    try:
        ours, reference = _compiled(case.ours, case.args), _compiled(case.reference, case.args)
        got = ours(*case.args).block_until_ready()
        start = time.perf_counter()
        want = reference(*case.args).block_until_ready()
        reference_first = time.perf_counter() - start
        row["difference"] = difference(got, want)
    except Exception as error:  # one broken layer must not hide the others
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        return row | {"status": "error", "message": text}
    if not row["difference"] <= TOLERANCE[case.dtype]:
        message = f"differs from lax by {row['difference']:.2g}, allowed {TOLERANCE[case.dtype]:g}"
        return row | {"status": "mismatch", "message": message}
    if reference_first > budget.max_time:
        pairs = [(_seconds(ours, case.args, 1), reference_first)]
    else:
        pairs = measure(ours, reference, case.args, budget)
    return row | {"status": "ok"} | statistics_of(pairs)


def _compiled(function: Callable[..., jax.Array], args: tuple[jax.Array, ...]):
    """Compiles ahead of time, so that the first call is already a run; a call costs as jit's."""
    return jax.jit(function).lower(*args).compile()


def _seconds(function: Callable[..., jax.Array], args: tuple[jax.Array, ...], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function(*args).block_until_ready()
    return (time.perf_counter() - start) / calls


def measure(ours, reference, args, budget: Budget) -> list[tuple[float, float]]:
    """Interleaved samples: ours, lax, ours, lax, ... each of as many calls as fill 0.5 ms."""
    stop = time.perf_counter() + budget.max_time
    calls = [math.ceil(5e-4 / max(_seconds(f, args, 1), 5e-6)) for f in (ours, reference)]
    best: list[tuple[float, float]] = []
    for _ in range(budget.retries + 1):
        pairs: list[tuple[float, float]] = []
        least_stop = time.perf_counter() + budget.min_time
        now = 0.0
        while now < min(stop, least_stop) or (len(pairs) < budget.min_pairs and now < stop):
            pairs.append((_seconds(ours, args, calls[0]), _seconds(reference, args, calls[1])))
            now = time.perf_counter()
        complete = len(pairs) >= budget.min_pairs
        if not best or (complete and _spread(pairs) < _spread(best)):
            best = pairs
        if _spread(best) <= budget.spread or now >= stop:
            break
    return best


def _spread(pairs: list[tuple[float, float]]) -> float:
    low, middle, high = quartiles([b / a for a, b in pairs])
    return (high - low) / middle


def statistics_of(pairs: list[tuple[float, float]]) -> dict[str, object]:
    least = [min(times) for times in zip(*pairs, strict=True)]
    return {
        "samples": len(pairs),
        "ours_ms": quartiles([a * 1e3 for a, _ in pairs]),
        "lax_ms": quartiles([b * 1e3 for _, b in pairs]),
        "ratio": quartiles([b / a for a, b in pairs]),
        "ours_min_ms": least[0] * 1e3,
        "lax_min_ms": least[1] * 1e3,
        "ratio_of_minima": least[1] / least[0],
    }
