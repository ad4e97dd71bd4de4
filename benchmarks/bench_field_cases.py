"""Times the convolutions that are known to be slow elsewhere, against jax.lax's, in one process.

    python benchmarks/bench_field_cases.py                     # a minute
    python benchmarks/bench_field_cases.py --filter groups --markdown

Gradients of transposed convolutions, groups, long kernels and strides, loops, gradients of samples, filters
as large as the image; and how long a first call takes, compilation included. docs/benchmarks.md says how
pairs are taken and what the columns mean.
"""

import argparse
import functools
import re
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import report
from bench_conv import gradients
from jax import lax
from timing import Budget, Case, run

import jax_cudnn_conv as jcc

jax.config.update("jax_enable_x64", True)  # each array states its dtype
DTYPES = {"f32": np.float32, "f64": np.float64}


def draw(dtype, *shapes):
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=shape), DTYPES[dtype]) for shape in shapes)


def lax_conv(x, w, dilation=1, groups=1):
    rank = x.ndim - 2
    letters = "DHW"[3 - rank :]
    return lax.conv_general_dilated(
        x,
        w,
        (1,) * rank,
        "SAME",
        rhs_dilation=(dilation,) * rank,
        dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
        feature_group_count=groups,
    )


def jcc_transposed(x, w, stride):
    return jcc.conv_transpose(x, w, strides=stride)


def lax_transposed(x, w, stride):
    return lax.conv_transpose(x, w, (stride,) * (x.ndim - 2), "SAME", transpose_kernel=True)


def case(name, direction, ours, theirs, args, dtype="f32"):
    network, _, layer = name.partition("/")
    return Case("field", network, layer, args[0].shape[0], direction, dtype, 0.0, ours, theirs, args)


def directions(name, ours, theirs, x, w):
    """Forward and the two gradients, each alone."""
    y = jnp.ones_like(jax.eval_shape(ours, x, w), jnp.float32)
    pairs = zip(*((f, *gradients(f, x, w)) for f in (ours, theirs)), strict=True)
    for direction, pair, args in zip(report.DIRECTIONS, pairs, ((x, w), (y, w), (x, y)), strict=True):
        yield case(name, direction, *pair, args)


def transposed_cases():
    for name, stride, shapes in (
        ("transposed/image", 2, ((8, 28, 28, 64), (3, 3, 64, 64))),
        ("transposed/volume", 2, ((1, 16, 16, 16, 32), (3, 3, 3, 1, 32))),
        ("transposed/128x128", 2, ((1, 128, 128, 16), (3, 3, 16, 16))),
        ("transposed/20x20x20", 2, ((1, 20, 20, 20, 64), (2, 2, 2, 64, 64))),
        ("transposed/k32s16", 16, ((1, 8, 8, 128), (32, 32, 32, 128))),
    ):
        pair = (functools.partial(f, stride=stride) for f in (jcc_transposed, lax_transposed))
        yield from directions(name, *pair, *draw("f32", *shapes))


def group_cases():
    for groups, dilation in ((1, 1), (2, 1), (8, 1), (32, 1), (64, 1), (1, 4), (32, 4), (64, 4)):
        arrays = draw("f32", (8, 56, 56, 64), (3, 3, 64 // groups, 64))
        pair = (functools.partial(f, dilation=dilation, groups=groups) for f in (jcc.conv, lax_conv))
        yield from directions(f"groups/g{groups}d{dilation}", *pair, *arrays)


def long_case(k=256, stride=64, frames=224):
    """Against one product of matrices and an overlap-add."""

    def ours(x, w):
        return jcc.conv_transpose(x, w, strides=stride, padding=0)

    def product(x, w):
        parts = (x[0] @ w[:, 0].T).reshape(frames, k // stride, stride)
        n = frames + k // stride - 1
        spread = [jnp.pad(parts[:, i], ((i, n - frames - i), (0, 0))) for i in range(k // stride)]
        return sum(spread).reshape(1, -1, 1)

    yield case(
        f"long/k{k}s{stride}", "to product", ours, product, draw("f32", (1, frames, 1026), (k, 1, 1026))
    )


def loop_cases():
    x, w = draw("f32", (1, 256, 256), (256, 256, 1))
    w = w / 16
    pair = (
        functools.partial(jcc.conv, dimension_numbers=("NCW", "OIW", "NCW")),
        lambda x, w: lax.conv_general_dilated(x, w, (1,), "SAME"),
    )
    yield case("channels_first/once", "forward", *pair, (x, w))
    loops = (lambda x, w, f=f: lax.fori_loop(0, 2, lambda _, x: f(x, w), x) for f in pair)
    yield case("channels_first/twice_in_loop", "forward", *loops, (x, w))


def sample_cases():
    def gradient(f, w, x):
        return jax.grad(lambda w: jnp.sum(f(x, w) ** 2))(w)

    x, w = draw("f32", (32, 16, 16, 8), (3, 3, 8, 16))
    pair = (functools.partial(gradient, f) for f in (jcc.conv, lax_conv))
    yield case("samples/whole_batch", "gradient", *(lambda x, w, f=f: f(w, x) for f in pair), (x, w))
    for n, extent, k in ((8, 16, 3), (32, 16, 3), (64, 16, 3), (512, 16, 3), (300, 4, 2)):
        x, w = draw("f32", (n, 1, extent, extent, 8), (k, k, 8, 16))
        mapped = (jax.vmap(functools.partial(gradient, f), (None, 0)) for f in (jcc.conv, lax_conv))
        yield case(
            f"samples/{extent}x{extent}",
            "each gradient",
            *(lambda x, w, f=f: f(w, x) for f in mapped),
            (x, w),
        )


def wide_cases():
    """Depthwise as in RepLKNet (31, 13) and SLaK (51 by 5), and a dense one; their gradients."""
    for extent, channels, kernel in ((56, 96, (31, 31)), (28, 192, (13, 13)), (56, 96, (5, 51))):
        args = draw("f32", (2, extent, extent, channels), (*kernel, 1, channels))
        name = f"wide/depthwise_{kernel[0]}x{kernel[1]}"
        pair = (functools.partial(f, groups=channels) for f in (jcc.conv, lax_conv))
        yield from directions(name, *pair, *args)
    arrays = draw("f32", (2, 64, 64, 16), (17, 17, 16, 16))
    yield from directions("wide/dense_17x17", jcc.conv, lax_conv, *arrays)


def filter_cases():
    for extent, k in ((128, 5), (128, 17), (128, 33), (128, 65), (100, 100)):
        for dtype in DTYPES:
            args = draw(dtype, (1, extent, extent, 1), (k, k, 1, 1))
            yield case(f"filter/{extent}k{k}", "forward", jcc.conv, lax_conv, args, dtype)


def cases():
    for group in (
        transposed_cases,
        group_cases,
        long_case,
        loop_cases,
        sample_cases,
        wide_cases,
        filter_cases,
    ):
        yield from group()


def first_call(function, shapes):
    """Seconds until the first result: tracing, compiling and running."""
    args = draw("f32", *shapes)
    start = time.perf_counter()
    jax.jit(function)(*args).block_until_ready()
    return time.perf_counter() - start


def first_calls():
    """Those that a search over kernels, or code that is generated tap by tap, would make slow."""
    for name, stride, shapes in (
        ("k32s16, 128 -> 32, 8x8", 16, ((1, 8, 8, 128), (32, 32, 32, 128))),
        ("k256s64, 1026 -> 1, 224", 64, ((1, 224, 1026), (256, 1, 1026))),
    ):
        ours, theirs = (
            first_call(functools.partial(f, stride=stride), shapes) for f in (jcc_transposed, lax_transposed)
        )
        yield f"first call, transposed, {name}: ours {ours:.2f} s, lax {theirs:.2f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--filter", metavar="REGEX", default="", help="cases whose name has this")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    options = parser.parse_args()
    about, start, rows = report.environment(), time.monotonic(), []
    print(f"{report.heading(about)}, {about['date']}\n")
    lines = [] if options.filter else list(first_calls())
    print(report.head(options.markdown))
    for one in cases():
        if re.search(options.filter, f"{one.network}/{one.layer}"):
            rows.append(run(one, Budget(min_time=0.2, max_time=0.5)))
            print(report.row_line(rows[-1], options.markdown), flush=True)
    lines += [f"{row['layer']}: {row['message']}" for row in rows if row["status"] != "ok"]
    print("", *lines, f"{len(rows)} rows in {time.monotonic() - start:.0f} s", sep="\n")
    return 0 if all(row["status"] == "ok" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
