"""Times a training step of whole models, as plain JAX compiles them and under `jcc.patch_jax()`.

    python benchmarks/bench_models.py                            # 5 models in f32 and bf16
    python benchmarks/bench_models.py --model unet,wavenet --dtype f32
    python benchmarks/bench_models.py --torch --json out.json    # and PyTorch's time

The models, in `models.py`, know nothing of this library. Their step (forward, backward, SGD) is
compiled ahead of time in both ways, and the two programs run in turn in one process, as in
`bench_conv.py`. The ratio is the median over those pairs of plain JAX's time divided by ours: above
1 this library is faster. PyTorch runs `models_torch.py` in a process of its own.

Exits with 1 if the losses differ by more than 1e-5 (bf16: 1e-2), or the gradients too much.
`difference` is the norm of the difference of all gradients over the norm of JAX's, at most 2e-2 in
f32. Rounding in bf16 alone changes gradients by tens of percent, so there `from f32` has the
distance of our gradients and of JAX's from those in f32, and ours may be 1.5 times JAX's: XLA omits
roundings between operations, but a call of a library returns bf16.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import models
import report
from bench_conv import DTYPES, choices
from timing import Budget, measure, quartiles, statistics_of

import jax_cudnn_conv as jcc

LOSS_TOLERANCE = {"f32": 1e-5, "bf16": 1e-2}
GRADIENT_TOLERANCE, FROM_F32 = 2e-2, 1.5

HEAD = ("model", "input", "dtype", "ours ms", "JAX ms", "ratio", "quartiles", "difference", "from f32")
HEAD += ("torch ms", "torch / ours")


def norm(tree) -> float:
    return float(jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree))))


def distance(got, want) -> float:
    return norm(jax.tree.map(jnp.subtract, got, want)) / norm(want)


def run(name: str, dtype: str, options: argparse.Namespace) -> dict[str, object]:
    """Compiles one model both ways, compares and times it; the result is a row."""
    model = models.MODELS[name]
    x, labels = map(jnp.asarray, models.data(model))
    module = model.make(dtype=DTYPES[dtype])
    args = (jax.jit(module.init)(jax.random.key(0), x), x, labels)

    def compiled(module):
        return jax.jit(models.training_step(module)).lower(*args).compile()

    reference = compiled(module)
    with jcc.patch_jax():
        ours = compiled(module)
        exact = compiled(model.make(dtype=jnp.float32)) if dtype == "bf16" else None

    (loss, _, grads), (their_loss, _, their_grads) = ours(*args), reference(*args)
    row = {"section": "models", "model": name, "dtype": dtype, "shape": model.shape, "scaled": model.scaled}
    row["parameters"] = sum(leaf.size for leaf in jax.tree.leaves(args[0]))
    row["loss"], row["lax_loss"] = float(loss), float(their_loss)
    row["difference"] = distance(grads, their_grads)
    same = abs(loss - their_loss) <= LOSS_TOLERANCE[dtype] * abs(their_loss)
    if exact:
        want = exact(*args)[2]
        row["from_f32"] = mine, theirs = distance(grads, want), distance(their_grads, want)
        same &= mine <= FROM_F32 * theirs
    else:
        same &= row["difference"] <= GRADIENT_TOLERANCE
    row["status"] = "ok" if same else "mismatch"

    budget = Budget(min_time=options.min_time, max_time=options.max_time, retries=1)
    timed = [lambda *args, step=step: jax.block_until_ready(step(*args))[0] for step in (ours, reference)]
    row |= statistics_of(measure(*timed, args, budget))
    return row | (time_torch(name, dtype, options) if options.torch else {})


def time_torch(name: str, dtype: str, options: argparse.Namespace) -> dict[str, object]:
    """PyTorch's time of the same step, measured right after ours."""
    script = pathlib.Path(__file__).with_name("models_torch.py")
    command = [sys.executable, script, name, dtype, f"--threads={len(os.sched_getaffinity(0))}"]
    command += [f"--min-time={options.min_time / 2}"]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    times = result["ms"]
    return {"torch": result["torch"], "torch_ms": quartiles(times), "torch_min_ms": min(times)}


def line(cells) -> str:
    return f"| {' | '.join(cells)} |"


def row_line(row: dict) -> str:
    low, ratio, high = row["ratio"]
    cells = [row["model"], "x".join(map(str, row["shape"])) + (" *" if row["scaled"] else ""), row["dtype"]]
    cells += [
        f"{row['ours_ms'][1]:.1f}",
        f"{row['lax_ms'][1]:.1f}",
        f"{ratio:.2f}",
        f"{low:.2f} - {high:.2f}",
    ]
    cells += [f"{row['difference']:.1e}" + (" DIFFERENT" if row["status"] != "ok" else "")]
    cells += ["{:.2g}, {:.2g}".format(*row["from_f32"]) if "from_f32" in row else ""]
    if "torch_ms" in row:
        torch = row["torch_ms"][1]
        cells += [f"{torch:.1f}", f"{torch / row['ours_ms'][1]:.2f}"]
    return line(cells + [""] * (len(HEAD) - len(cells)))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--model", type=choices(models.MODELS), default=list(models.MODELS), help=",".join(models.MODELS))
    add("--dtype", type=choices(LOSS_TOLERANCE), default=list(LOSS_TOLERANCE), help="of f32,bf16")
    add("--min-time", type=float, default=20.0, help="seconds per row (%(default)s)")
    add("--max-time", type=float, default=60.0, help="limit per row (%(default)s)")
    add("--torch", action="store_true", help="time the same models in PyTorch, too")
    add("--json", metavar="FILE", help="write everything measured here")
    options = parser.parse_args()

    about, start, rows = report.environment(), time.monotonic(), []
    print(report.heading(about) + "\n")
    print(line(HEAD) + "\n" + line(["---"] * len(HEAD)))
    for name in options.model:
        for dtype in options.dtype:
            rows.append(run(name, dtype, options))
            print(row_line(rows[-1]), flush=True)
    for name in options.model:
        if scaled := models.MODELS[name].scaled:
            print(f"\n\\* {name}: {scaled}")
    about["seconds"] = round(time.monotonic() - start, 1)
    mean = statistics.geometric_mean(row["ratio"][1] for row in rows)
    print(f"\n{len(rows)} rows in {about['seconds']:.0f} s; geometric mean of the ratios {mean:.2f}")
    if options.json:
        report.write_json(options.json, rows, about)
    return 0 if all(row["status"] == "ok" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
