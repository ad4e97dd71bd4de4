"""Times convolutions on a GPU: this library, XLA's own and PyTorch's, in one process.

    python benchmarks/bench_gpu.py --quick --json quick.json   # two minutes: the most telling layers
    python benchmarks/bench_gpu.py --filter resnet50 --dtype bf16
    python benchmarks/bench_gpu.py --dry-run                   # tiny layers on cuDNN's test double

The contestants: `ours` takes cuDNN's first recommendation, `tuned` is ours with autotune="limited", `lax` is
jax.lax, which XLA tunes while it compiles, `torch` and `torch tuned` are PyTorch, channels last, with
cudnn.benchmark off and on; "-" where PyTorch or such padding is missing. f32 may be TF32 for all.

One call convolves several copies of the operands, and a sample is as many calls as last `--sample`, waited
for once: what counts is the GPU's time and not the launch. Samples are taken in turn; times are medians for
one convolution, ratios are medians over the pairs of samples: above 1 the first of the two names is slower.

Exits with 1 if a value differs from lax's, or if ours or lax fails.
"""

import argparse
import concurrent.futures
import dataclasses
import functools
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

if "--dry-run" in sys.argv:
    os.environ["JAX_PLATFORMS"] = "cpu"
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
else:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs memory, too

import jax
import jax.numpy as jnp
import numpy as np
import report
from bench_conv import DTYPES, TINY, choices, gradients, ours_forward, ours_gradients, reference_forward
from jax import lax
from layers import LAYERS, Layer
from report import DIRECTIONS
from timing import Case, quartiles

import jax_cudnn_conv as jcc

try:
    import torch
except ImportError:
    torch = None

DRY_RUN = "--dry-run" in sys.argv
TORCH = torch is not None and (DRY_RUN or torch.cuda.is_available())

# Relative to the largest element. TF32 has as many bits as f16; two libraries round or cut operands to it.
TOLERANCE = {"f32": 2e-3, "bf16": 1e-2, "f16": 2e-3}
QUICK = ("resnet50/res2a_3x3", "mobilenet/conv4_1_dw", "resnext101/conv12", "unet/dcgan3", "unet3d/conv4")
QUICK += ("resnet50/res4a_1x1b", "wavenet/d8", "resnet50/conv1")
RATIOS = (("lax", "ours"), ("lax", "tuned"), ("torch", "ours"), ("torch tuned", "tuned"))
NAMES = ("ours", "tuned", "lax", "torch", "torch tuned")
DRY_LAYERS = (
    TINY,
    Layer("tiny", "up", True, (5, 5), 4, 3, 2, 2, 1, 1, (0, 0), ""),
    Layer("tiny", "groups_1d", False, (16,), 4, 4, 3, 1, 1, 2, (1, 1), ""),
)


@dataclasses.dataclass(frozen=True)
class Job:
    """A row, and what PyTorch is told: stride, padding, dilation, transposed, output padding and groups.

    `shapes` are those of x, w and y in JAX's order; `given` is None where PyTorch has no such padding.
    """

    case: Case
    shapes: dict[str, tuple[int, ...]]
    given: tuple | None
    channels_last: bool = True


def operands(shape: tuple[int, ...], dtype: str, seed: int) -> jax.Array:
    """A million random numbers, over and over: drawing all of them would take longer than the benchmark."""
    drawn = np.random.default_rng(seed).standard_normal(999_983, np.float32)
    return jnp.asarray(np.resize(drawn, shape)).astype(DTYPES[dtype])


def layer_jobs(layer: Layer, batch: int, dtype: str) -> Iterator[Job]:
    """The three directions of a layer."""
    shapes = {"x": layer.input_shape(batch), "w": layer.kernel_shape, "y": layer.output_shape(batch)}
    x, w, y = (operands(shape, dtype, seed) for seed, shape in enumerate(shapes.values()))
    theirs = reference_forward(layer)
    ours = (ours_forward(layer), *ours_gradients(layer, x, w))
    rank, (low, high) = len(layer.spatial), layer.padding
    given = (layer.stride,), (low,), (layer.dilation,), layer.transposed, (0,), layer.groups
    given = tuple(v * rank if isinstance(v, tuple) else v for v in given) if low == high else None
    for direction, mine, reference, args in zip(
        DIRECTIONS, ours, (theirs, *gradients(theirs, x, w)), ((x, w), (y, w), (x, y)), strict=True
    ):
        names = (layer.network, layer.layer, batch, direction, dtype)
        case = Case("gpu", *names, layer.flops(batch) / 1e9, mine, reference, args)
        yield Job(case, shapes, given)


def sentence_job() -> Job:
    """The gradient by a sentence, an image one kernel wide: XLA has been many times slower."""
    length, width, taps, features = (20, 6, 3, 5) if DRY_RUN else (2060, 300, 5, 500)
    shapes = {"x": (1, 1, length, width), "w": (features, 1, taps, width)}
    shapes["y"] = (1, features, length - taps + 1, 1)
    layout = {"dimension_numbers": ("NCHW", "OIHW", "NCHW")}
    y, w = operands(shapes["y"], "f32", 0), operands(shapes["w"], "f32", 1)
    ours = functools.partial(jcc.conv_backward_data, input_shape=shapes["x"], padding="VALID", **layout)

    def forward(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "VALID", **layout)

    theirs = gradients(forward, jax.ShapeDtypeStruct(shapes["x"], y.dtype), w)[0]
    gflop = 2 * math.prod(shapes["w"]) * shapes["y"][2] / 1e9
    case = Case("gpu", "sentence", "one_row", 1, "backward-data", "f32", gflop, ours, theirs, (y, w))
    return Job(case, shapes, ((1, 1), (0, 0), (1, 1), False, (0, 0), 1), channels_last=False)


def jobs(options: argparse.Namespace) -> Iterator[Job]:
    wanted = LAYERS
    if DRY_RUN:
        wanted = DRY_LAYERS
    elif options.quick:
        wanted = [next(layer for layer in LAYERS if layer.name == name) for name in QUICK]
    for dtype in options.dtype:
        if dtype == "f32" and re.search(options.filter, "sentence/one_row"):
            yield sentence_job()
        for layer in wanted:
            if re.search(options.filter, layer.name):
                yield from layer_jobs(layer, options.batch, dtype)


def in_jax(function: Callable, sets: list) -> tuple[jax.Array, Callable[[int], float]]:
    """The first result, and what times a number of calls, in seconds for each."""
    compiled = jax.jit(lambda sets: [function(*args) for args in sets]).lower(sets).compile()

    def run(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            out = compiled(sets)
        jax.block_until_ready(out)
        return (time.perf_counter() - start) / calls

    return compiled(sets)[0], run


def to_torch(array: jax.Array, role: str, channels_last: bool):
    tensor = torch.from_dlpack(array)
    if not channels_last:
        return tensor
    rank = tensor.ndim - 2
    last = {2: torch.channels_last, 3: torch.channels_last_3d}.get(rank, torch.contiguous_format)
    order = (rank + 1, rank, *range(rank)) if role == "w" else (0, rank + 1, *range(1, rank + 1))
    return tensor.permute(order).contiguous(memory_format=last)


def to_jax(tensor, role: str, channels_last: bool) -> jax.Array:
    if channels_last:
        rank = tensor.ndim - 2
        axes = range(2, rank + 2)
        tensor = tensor.permute((*axes, 1, 0) if role == "w" else (0, *axes, 1))
    return jnp.from_dlpack(tensor.contiguous())


def in_torch(job: Job, sets: list, benchmark: bool) -> tuple[jax.Array, Callable[[int], float]]:
    """The same. In a thread of its own: PyTorch keeps the plans that it has chosen for each thread, so one
    with and one without trials would share them."""
    roles = {"forward": "xwy", "backward-data": "ywx", "backward-filter": "xyw"}[job.case.direction]
    copies = [
        [to_torch(a, role, job.channels_last) for a, role in zip(args, roles, strict=False)] for args in sets
    ]
    like = to_torch(jnp.zeros(job.shapes[roles[2]], sets[0][0].dtype), roles[2], job.channels_last)

    def convolve(a, b):
        match roles[2]:
            case "y":
                return torch.ops.aten.convolution(a, b, None, *job.given)
            case "x":
                operands, mask = (a, like, b), [True, False, False]
            case _:
                operands, mask = (b, a, like), [False, True, False]
        out = torch.ops.aten.convolution_backward(*operands, None, *job.given, mask)
        return out[0] if mask[0] else out[1]

    def run(calls: int) -> float:
        torch.backends.cudnn.benchmark = benchmark
        start = time.perf_counter()
        for _ in range(calls):
            for args in copies:
                convolve(*args)
        wait()
        return (time.perf_counter() - start) / calls

    def first() -> jax.Array:
        torch.backends.cudnn.benchmark = benchmark
        out = to_jax(convolve(*copies[0]), roles[2], job.channels_last)
        wait()
        return out

    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    pool = concurrent.futures.ThreadPoolExecutor(1)
    return pool.submit(first).result(), lambda calls: pool.submit(run, calls).result()


@jax.jit
def difference(got: jax.Array, want: jax.Array) -> jax.Array:
    got, want = got.astype(jnp.float32), want.astype(jnp.float32)
    largest = jnp.abs(want).max()
    return jnp.abs(got - want).max() / jnp.where(largest > 0, largest, 1)


def contestants(job: Job, sets: list) -> Iterator[tuple[str, Callable]]:
    """By name, what compiles each and tells its first result and its timer."""
    for name, autotune in (("ours", "off"), ("tuned", "limited")):
        with jcc.options(autotune=autotune):
            yield name, functools.partial(in_jax, job.case.ours, sets)
    yield "lax", functools.partial(in_jax, job.case.reference, sets)
    if TORCH and job.given:
        yield "torch", functools.partial(in_torch, job, sets, False)
        yield "torch tuned", functools.partial(in_torch, job, sets, True)


def measure(job: Job, options: argparse.Namespace) -> dict[str, object]:
    """A row of the report."""
    fields = ("section", "network", "layer", "batch", "direction", "dtype", "gflop")
    row: dict = {name: getattr(job.case, name) for name in fields} | {"status": "ok", "differences": {}}
    sets = [tuple(map(jnp.copy, job.case.args)) for _ in range(options.copies)]
    results, timers, messages = {}, {}, []
    for name, start in contestants(job, sets):
        try:
            results[name], timers[name] = start()
        except Exception as error:  # one contestant must not hide the others
            messages.append(f"{name}: {type(error).__name__}: {error}".partition("\n")[0])
            if not name.startswith("torch"):
                row["status"] = "error"
    for name, result in results.items():
        if name == "lax" or "lax" not in results:
            continue
        row["differences"][name] = float(difference(result, results["lax"]))
        if not row["differences"][name] <= TOLERANCE[job.case.dtype]:
            row["status"] = "mismatch"
            messages.append(f"{name} differs from lax by {row['differences'][name]:.2g}")
    results.clear()
    explained = jcc.explain(job.case.ours, *job.case.args, device="sm_90" if DRY_RUN else None)
    row |= {"kernel": str(explained[0].kernel), "message": "; ".join(messages)}
    return row | _statistics(timers, options)


def _statistics(timers: dict[str, Callable[[int], float]], options: argparse.Namespace) -> dict[str, object]:
    """Samples in turn, for `--row-time` and at least five of each."""
    calls = {name: math.ceil(options.sample / max(min(run(1), run(1)), 1e-5)) for name, run in timers.items()}
    samples: dict[str, list[float]] = {name: [] for name in timers}
    start = time.perf_counter()
    while timers and (
        time.perf_counter() < start + options.row_time or len(next(iter(samples.values()))) < 5
    ):
        for name, run in timers.items():
            samples[name].append(run(calls[name]) / options.copies * 1e6)
    ratios = {
        f"{a}/{b}": quartiles([p / q for p, q in zip(samples[a], samples[b], strict=True)])
        for a, b in RATIOS
        if a in samples and b in samples
    }
    microseconds = {name: quartiles(times) for name, times in samples.items()}
    return {"calls": calls, "samples": len(samples.get("lax", ())), "us": microseconds, "ratios": ratios}


def table_line(row: dict | None) -> str:
    """A row of the table, or its head."""
    ratios = list(map("/".join, RATIOS))
    if row is None:
        names = " ".join(f"{name:>11}" for name in NAMES)
        return f"{'layer':26} {'direction':15} dtype {names}  {'  '.join(ratios)}  (times in us)"
    cells = [f"{row['us'][n][1]:11.1f}" if n in row["us"] else f"{'-':>11}" for n in NAMES]
    cells += [
        f"{row['ratios'][r][1]:{len(r) + 1}.2f}" if r in row["ratios"] else f"{'-':>{len(r) + 1}}"
        for r in ratios
    ]
    bad = [] if row["status"] == "ok" else [row["status"].upper()]
    start = f"{row['network'] + '/' + row['layer']:26} {row['direction']:15} {row['dtype']:5}"
    return " ".join([start, *cells, *bad, row["message"][:120]]).rstrip()


def means(rows: list[dict]) -> dict[str, dict[str, float]]:
    """Geometric means of the ratios by dtype and direction."""
    groups: dict[str, dict[str, float]] = {}
    for key in dict.fromkeys((row["dtype"], row["direction"]) for row in rows):
        mine = [row["ratios"] for row in rows if (row["dtype"], row["direction"]) == key]
        for name in map("/".join, RATIOS):
            ratios = [ratio[name][1] for ratio in mine if name in ratio]
            if ratios:
                groups.setdefault(" ".join(key), {})[name] = report.geometric_mean(ratios)
    return groups


def about() -> dict[str, object]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,clocks.mem", "--format=csv,noheader"]
    try:
        smi = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        smi = "no nvidia-smi"
    told = {"gpu": jax.devices()[0].device_kind, "nvidia-smi": smi, "torch": None}
    if TORCH:
        told["torch"] = f"{torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    return report.environment() | told


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--filter", metavar="REGEX", default="", help="layers whose name has this")
    add("--batch", type=int, default=32)
    add("--dtype", type=choices(DTYPES), default=list(DTYPES), help="of " + ",".join(DTYPES))
    add("--copies", type=int, default=8, help="of the operands in one call (%(default)s)")
    add("--sample", type=float, default=5e-3, help="seconds of a sample, at least (%(default)s)")
    add("--row-time", type=float, default=0.25, help="seconds of samples for a row (%(default)s)")
    add("--max-time", type=float, help="start no row after so many seconds (100 with --quick)")
    add("--json", metavar="FILE", help="write everything measured here")
    add("--quick", action="store_true", help="the most telling layers, two minutes")
    add("--dry-run", action="store_true", help="tiny layers on the CPU, through cuDNN's test double")
    options = parser.parse_args()
    if options.max_time is None:
        options.max_time = 100 if options.quick else math.inf
    if DRY_RUN:
        options.batch, options.copies, options.sample, options.row_time = 2, 2, 1e-4, 0.02
    return options


def main() -> int:
    options, start = arguments(), time.monotonic()
    if DRY_RUN:
        import gpu_on_cpu

        gpu_on_cpu.install()
    elif jax.default_backend() != "gpu":
        sys.exit(f"JAX runs on {jax.default_backend()}: a GPU is wanted, or --dry-run")
    told, rows = about(), []
    print(f"{told['gpu']} ({told['nvidia-smi']}); jax {told['jax']}; torch {told['torch']}")
    print("\n".join(line for line in told["config"] if line.startswith("cuDNN")), table_line(None), sep="\n")
    try:
        for job in jobs(options):
            if time.monotonic() - start > options.max_time:
                print(f"stopped after {options.max_time:g} s, before {job.case.layer} in {job.case.dtype}")
                break
            rows.append(measure(job, options))
            print(table_line(rows[-1]), flush=True)
    except KeyboardInterrupt:
        print("interrupted: the results so far follow")
    told |= {"means": means(rows), "seconds": round(time.monotonic() - start, 1)}
    for group, ratios in told["means"].items():
        print(f"{group:22} " + "  ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))
    if options.json:
        report.write_json(options.json, rows, told)
    print(f"{len(rows)} rows in {told['seconds']:.0f} s")
    return 0 if rows and all(row["status"] == "ok" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
