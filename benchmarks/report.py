"""Tables and JSON from the rows of the benchmark."""

import contextlib
import datetime
import io
import json
import math
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from importlib import metadata

import jax

import jax_cudnn_conv as jcc

SLOW = 0.95
DIRECTIONS = ("forward", "backward-data", "backward-filter")
Row = dict

_ISA = re.compile(r"avx2|fma|avx_vnni|avx512(?:f|_vnni|_bf16|_fp16)|amx_\w+|asimd|sve2?|bf16|i8mm")
_HEAD = ("layer", "batch", "direction", "dtype", "ours ms", "lax ms", "ratio", "quartiles")
_HEAD += ("of minima", "")
_WIDTHS = (-24, 5, -15, -5, 9, 9, 7, -17, 9, -8)


def _line(cells: Iterable[str], widths: Iterable[int], markdown: bool) -> str:
    padded = [c.ljust(-w) if w < 0 else c.rjust(w) for c, w in zip(cells, widths, strict=True)]
    return f"| {' | '.join(padded)} |" if markdown else "  ".join(padded).rstrip()


def _rule(widths: Iterable[int], markdown: bool) -> str:
    cells = ["-" * -w if w < 0 else "-" * (w - 1) + (":" if markdown else "-") for w in widths]
    return _line(cells, widths, markdown)


def head(markdown: bool) -> str:
    return _line(_HEAD, _WIDTHS, markdown) + "\n" + _rule(_WIDTHS, markdown)


def row_line(row: Row, markdown: bool) -> str:
    """One row of the table, as it is measured."""
    name = f"{row['network']}/{row['layer']}"
    start = (name, str(row["batch"]), row["direction"], row["dtype"])
    if row["status"] != "ok":
        end = ("-",) * 5 + (row["status"].upper(),)
        return _line(start + end, _WIDTHS, markdown)
    low, ratio, high = row["ratio"]
    once = "one run" if row["samples"] == 1 else ""
    mark = f"< {SLOW}" if ratio < SLOW else once
    times = (f"{row['ours_ms'][1]:.3f}", f"{row['lax_ms'][1]:.3f}", f"{ratio:.2f}")
    end = (f"{low:.2f} - {high:.2f}", f"{row['ratio_of_minima']:.2f}", mark)
    return _line((*start, *times, *end), _WIDTHS, markdown)


def geometric_mean(ratios: list[float]) -> float:
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def _groups(rows: list[Row]) -> dict[str, list[Row]]:
    networks = dict.fromkeys(row["network"] for row in rows)
    groups = {name: [row for row in rows if row["network"] == name] for name in networks}
    for batch in sorted({row["batch"] for row in rows}):
        groups[f"all, batch {batch}"] = [row for row in rows if row["batch"] == batch]
    return groups | {"all": rows}


def _means(rows: list[Row], directions: list[str], ratio: Callable[[Row], float]) -> dict:
    means = {d: geometric_mean([ratio(r) for r in rows if r["direction"] == d]) for d in directions}
    return means | {"all": geometric_mean([ratio(row) for row in rows])}


def summarise(rows: list[Row]) -> dict[str, dict]:
    """For each dtype: geometric means per network and direction, the slowest row, the slow ones."""
    summary = {}
    timed = [row for row in rows if row["status"] == "ok" and row["section"] == "layers"]
    for dtype in dict.fromkeys(row["dtype"] for row in timed):
        mine = [row for row in timed if row["dtype"] == dtype]
        directions = [d for d in DIRECTIONS if any(row["direction"] == d for row in mine)]
        means, slowest = {}, {}
        for name, group in _groups(mine).items():
            means[name] = _means(group, directions, lambda row: row["ratio"][1])
        means["all, of minima"] = _means(mine, directions, lambda row: row["ratio_of_minima"])
        for direction in (*directions, "all"):
            worst = min(
                (row for row in mine if direction in ("all", row["direction"])),
                key=lambda row: row["ratio"][1],
            )
            slowest[direction] = {"ratio": worst["ratio"][1], "row": _label(worst)}
        slow = sorted((r["ratio"][1], _label(r)) for r in mine if r["ratio"][1] < SLOW)
        summary[dtype] = {"geometric_mean": means, "slowest": slowest, "below_0.95": slow}
    return summary


def _label(row: Row) -> str:
    name = f"{row['network']}/{row['layer']}"
    return f"{name} batch {row['batch']} {row['direction']} {row['dtype']}"


def summary_lines(rows: list[Row], markdown: bool) -> list[str]:
    lines: list[str] = []
    for dtype, part in summarise(rows).items():
        columns = list(part["slowest"])
        widths = (-18, *(max(len(c), 8) for c in columns))
        lines += ["", f"{dtype}: time of lax / time of ours, geometric means", ""]
        lines += [_line(("network", *columns), widths, markdown), _rule(widths, markdown)]
        for name, means in part["geometric_mean"].items():
            cells = [f"{means.get(c, math.nan):.2f}" for c in columns]
            lines.append(_line((name, *cells), widths, markdown))
        cells = [f"{part['slowest'][c]['ratio']:.2f}" for c in columns]
        lines += [_line(("slowest row", *cells), widths, markdown), ""]
        slow = part["below_0.95"]
        count = sum(row["status"] == "ok" and row["dtype"] == dtype for row in rows)
        lines.append(f"{len(slow)} of {count} rows below {SLOW}" + (":" if slow else "."))
        lines += [f"- {ratio:.2f} {label}" for ratio, label in slow]
    bad = [row for row in rows if row["status"] != "ok"]
    if bad:
        lines += ["", f"without a result, {len(bad)} of {len(rows)} rows:"]
        lines += [f"- {_label(row)}: {row['status']}, {row['message']}" for row in bad]
    return lines


def heading(about: dict[str, object]) -> str:
    """What `environment` tells, for the top of a table."""
    cpu = f"{about['cpu']}, {about['cores']} cores, {' '.join(about['isa'])}"
    return f"{cpu}\n{about['onednn']}; jax {about['jax']}, jaxlib {about['jaxlib']}"


def environment() -> dict[str, object]:
    """What a reader needs to judge the numbers; absolute paths are cut to their last name."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        jcc.show_config()
    config = [_without_folders(line) for line in text.getvalue().splitlines()]
    model, isa = _cpu()
    command = ["python", "benchmarks/" + os.path.basename(sys.argv[0]), *sys.argv[1:]]
    limits = ("JAX_CUDNN_CONV_", "ONEDNN_", "DNNL_", "OMP_", "XLA_FLAGS", "NPROC")
    variables = {k: v for k, v in os.environ.items() if k.startswith(limits)}
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": _without_folders(shlex.join(command)),
        "cpu": model,
        "cores": _cores(),
        "isa": isa,
        "load_average": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": metadata.version("jaxlib"),
        "onednn": next((line for line in config if line.startswith("oneDNN")), "unknown"),
        "config": config,
        "variables": {name: _without_folders(value) for name, value in variables.items()},
    }


def _without_folders(text: str) -> str:
    return re.sub(r"(?<![\w.])/(?:[^/\s'\"]+/)+", "", text)


def _cores() -> int | None:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _cpu() -> tuple[str, list[str]]:
    """The CPU's name and the instruction sets that matter here."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return platform.processor(), []
    field = {key: re.search(rf"^{key}\s*:\s*(.*)$", text, re.M) for key in ("model name", "flags")}
    flags = field["flags"][1].split() if field["flags"] else []
    model = field["model name"][1] if field["model name"] else platform.processor()
    return model, list(filter(_ISA.fullmatch, flags))


def write_json(path: str, rows: list[Row], about: dict[str, object]) -> None:
    """One object, every row on a line of its own, so that two results can be compared by diff."""
    result = json.dumps(_rounded(about | {"summary": summarise(rows)}), indent=1)
    lines = ",\n".join("  " + json.dumps(_rounded(row)) for row in rows)
    with open(path, "w", encoding="utf-8") as file:
        file.write(result.removesuffix("\n}") + f',\n "rows": [\n{lines}\n ]\n}}\n')


def _rounded(value):
    """Floats with five digits: more is noise."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value
