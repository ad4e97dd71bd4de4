"""Times convolutions of this library against jax.lax's, in one process.

    python benchmarks/bench_conv.py                         # all layers in f32, 10 to 15 minutes
    python benchmarks/bench_conv.py --quick                 # a minute: is anything badly off?
    python benchmarks/bench_conv.py --filter resnet50/res5 --batch 1 --dtype f32,bf16
    python benchmarks/bench_conv.py --tiny --scan           # cost of a call; inside a scan

For each layer of `layers.py`, direction and dtype both functions are compiled, their values are
compared, and samples are taken in turn (ours, lax, ours, lax, ...), each call waited for. The ratio
is the median over those pairs of lax's time divided by ours: above 1 this library is faster. The
quartiles are those of the same ratios; `of minima` divides the shortest times, which other work on
the machine disturbs least. A row with a wide spread is measured again, see `timing.py`; `one run`
marks rows whose budget allows a single pair, as XLA's slowest kernels take seconds.

Exits with 1 if a value differs from lax's or a case fails.
"""

import argparse
import dataclasses
import re
import sys
import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import report
from jax import lax
from layers import LAYERS, Layer, cheapest
from report import DIRECTIONS
from timing import Budget, Case, run

import jax_cudnn_conv as jcc

DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "f16": jnp.float16}


def array(shape: tuple[int, ...], dtype: str, seed: int, scale: float = 1.0) -> jax.Array:
    values = np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(scale)
    return jnp.asarray(values, DTYPES[dtype])


def reference_forward(layer: Layer) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """The layer as a user of jax.lax writes it."""
    rank = len(layer.spatial)
    strides, dilation = (layer.stride,) * rank, (layer.dilation,) * rank
    if not layer.transposed:
        return lambda x, w: lax.conv_general_dilated(
            x,
            w,
            strides,
            [layer.padding] * rank,
            rhs_dilation=dilation,
            dimension_numbers=layer.dimension_numbers,
            feature_group_count=layer.groups,
        )
    reach = layer.dilation * (layer.kernel - 1)  # lax pads the stretched input, not the output
    pads = [(reach - layer.padding[0], reach - layer.padding[1])] * rank
    return lambda x, w: lax.conv_transpose(
        x,
        w,
        strides,
        pads,
        rhs_dilation=dilation,
        dimension_numbers=layer.dimension_numbers,
        transpose_kernel=True,
    )


def ours_forward(layer: Layer) -> Callable[[jax.Array, jax.Array], jax.Array]:
    function = jcc.conv_transpose if layer.transposed else jcc.conv
    return lambda x, w: function(x, w, **geometry(layer))


def geometry(layer: Layer) -> dict[str, object]:
    return {
        "strides": layer.stride,
        "padding": [layer.padding] * len(layer.spatial),
        "dilation": layer.dilation,
        "groups": layer.groups,
    }


def gradients(forward: Callable, x: jax.Array, w: jax.Array) -> tuple[Callable, Callable]:
    """The two gradients alone, as functions of (y, w) and (x, y)."""
    x_like, w_like = (jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (x, w))

    def backward_data(y, w):
        return jax.linear_transpose(lambda x: forward(x, w), x_like)(y)[0]

    def backward_filter(x, y):
        return jax.linear_transpose(lambda w: forward(x, w), w_like)(y)[0]

    return backward_data, backward_filter


def ours_gradients(layer: Layer, x: jax.Array, w: jax.Array) -> tuple[Callable, Callable]:
    """The named functions for a convolution; JAX's transposition for a transposed one."""
    if layer.transposed:
        return gradients(ours_forward(layer), x, w)
    keywords = geometry(layer)
    return (
        lambda y, w: jcc.conv_backward_data(y, w, input_shape=x.shape, **keywords),
        lambda x, y: jcc.conv_backward_filter(x, y, kernel_shape=w.shape, **keywords),
    )


def layer_cases(layers, batches, directions, dtypes) -> Iterator[Case]:
    """Three rows for each layer, batch and dtype; the tensors are made once for the three."""
    for dtype in dtypes:
        for layer in layers:
            for batch in batches:
                x = array(layer.input_shape(batch), dtype, 0)
                w = array(layer.kernel_shape, dtype, 1)
                y = array(layer.output_shape(batch), dtype, 2)
                lax_forward = reference_forward(layer)
                ours = (ours_forward(layer), *ours_gradients(layer, x, w))
                theirs = (lax_forward, *gradients(lax_forward, x, w))
                for direction, mine, reference, args in zip(
                    DIRECTIONS, ours, theirs, ((x, w), (y, w), (x, y)), strict=True
                ):
                    if direction in directions:
                        gflop = layer.flops(batch) / 1e9
                        names = (layer.network, layer.layer, batch, direction, dtype)
                        yield Case("layers", *names, gflop, mine, reference, args)


TINY = Layer("tiny", "8x8x4", False, (8, 8), 4, 4, 3, 1, 1, 1, (1, 1), "")


def tiny_cases(directions, dtypes) -> Iterator[Case]:
    """A convolution that takes no time: what is left is the cost of a call."""
    for case in layer_cases((TINY,), (1,), directions, dtypes):
        yield dataclasses.replace(case, section="tiny")


def scan_cases(dtypes, steps: int = 16) -> Iterator[Case]:
    """A recurrence of convolutions under lax.scan, and its gradient by the kernel."""
    layer = Layer("scan", f"{steps}_steps", False, (16, 16), 16, 16, 3, 1, 1, 1, (1, 1), "")

    def recurrence(convolve):
        def forward(x, w):
            def step(state, _):
                return jnp.tanh(convolve(state, w)), None

            return lax.scan(step, x, None, length=steps)[0]

        def gradient(x, w):
            return jax.grad(lambda w: jnp.mean(jnp.square(forward(x, w).astype(jnp.float32))))(w)

        return forward, gradient

    for dtype in dtypes:
        args = (array(layer.input_shape(4), dtype, 0), array(layer.kernel_shape, dtype, 1, 0.05))
        ours, theirs = recurrence(ours_forward(layer)), recurrence(reference_forward(layer))
        for direction, mine, reference in zip(("forward", "gradient"), ours, theirs, strict=True):
            gflop = layer.flops(4) * steps * (1 if direction == "forward" else 3) / 1e9
            names = (layer.network, layer.layer, 4, direction, dtype)
            yield Case("scan", *names, gflop, mine, reference, args)


def choices(allowed) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := [name for name in names if name not in allowed]:
            wanted = ", ".join(allowed)
            raise argparse.ArgumentTypeError(f"unknown {', '.join(unknown)}; choose from {wanted}")
        return names

    return parse


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--filter", metavar="REGEX", default="", help="layers whose name has this")
    add("--batch", metavar="N,N", type=lambda s: [int(n) for n in s.split(",")], default=[1, 8])
    add("--directions", type=choices(DIRECTIONS), default=DIRECTIONS, help=",".join(DIRECTIONS))
    add("--dtype", type=choices(DTYPES), default=["f32"], help="of " + ",".join(DTYPES))
    add("--min-time", type=float, default=Budget.min_time, help="seconds per row (%(default)s)")
    add("--max-time", type=float, default=Budget.max_time, help="limit per row (%(default)s)")
    add("--json", metavar="FILE", help="write everything measured here")
    add("--markdown", action="store_true", help="print the tables as Markdown")
    add("--quick", action="store_true", help="two cheap layers per network, batch 1, short runs")
    add("--tiny", action="store_true", help="only a tiny convolution: the overhead of a call")
    add("--scan", action="store_true", help="only convolutions inside lax.scan, with gradients")
    options = parser.parse_args()
    if options.quick:
        options.batch, options.min_time, options.max_time = [1], 0.05, 0.3
    return options


def cases(options: argparse.Namespace) -> Iterator[Case]:
    if options.tiny:
        yield from tiny_cases(options.directions, options.dtype)
    if options.scan:
        yield from scan_cases(options.dtype)
    if not (options.tiny or options.scan):
        layers = tuple(layer for layer in LAYERS if re.search(options.filter, layer.name))
        if not layers:
            sys.exit(f"no layer matches {options.filter!r}")
        layers = cheapest(layers, 2) if options.quick else layers
        yield from layer_cases(layers, options.batch, options.directions, options.dtype)


def main() -> int:
    options = arguments()
    about, start, rows = report.environment(), time.monotonic(), []
    print(report.heading(about) + "\n")
    print(report.head(options.markdown))
    try:
        for case in cases(options):
            rows.append(run(case, Budget(min_time=options.min_time, max_time=options.max_time)))
            print(report.row_line(rows[-1], options.markdown), flush=True)
    except KeyboardInterrupt:
        print("interrupted: the results so far follow")
    print("\n".join(report.summary_lines(rows, options.markdown)))
    about["seconds"] = round(time.monotonic() - start, 1)
    print(f"\n{len(rows)} rows in {about['seconds']:.0f} s")
    if options.json:
        report.write_json(options.json, rows, about)
    return 0 if all(row["status"] == "ok" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
