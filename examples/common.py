"""What the examples share: arguments, timing in turns, comparison, pictures."""

import argparse
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image, ImageDraw, ImageFont

import jax_cudnn_conv as jcc

WHITE, INK, GREY = (255, 255, 255), (40, 40, 40), (170, 170, 170)
BLUE, ORANGE = (31, 119, 180), (235, 110, 20)


def parse(doc, path):
    """The arguments that every example has."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="seconds, and wide bounds: for tests")
    parser.add_argument("--output", type=Path, default=Path(path).with_suffix(".png"))
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def compile_both(function, *args):
    """A function on our kernels and on XLA's."""
    ours = jax.jit(function).lower(*args).compile()
    with jcc.options(backend="xla"):
        return ours, jax.jit(function).lower(*args).compile()


def seconds(function, *args):
    """How long a call takes, and its result."""
    start = time.perf_counter()
    result = jax.block_until_ready(function(*args))
    return time.perf_counter() - start, result


def print_times(what, ours, theirs):
    """Print the medians of times that were taken in turns."""
    ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
    print(f"\nTime per {what}, median of {len(ours)} in turns")
    print(f"  jax_cudnn_conv      {1e3 * statistics.median(ours):8.2f} ms")
    print(f"  XLA's convolutions  {1e3 * statistics.median(theirs):8.2f} ms   {ratio:.1f} times ours")


def compare(what, ours, theirs, args, pairs, tolerance=1e-4):
    """Time two compiled functions of the same arguments; say whether their results are the same."""
    mine, reference = ours(*args), theirs(*args)
    times = [(seconds(ours, *args)[0], seconds(theirs, *args)[0]) for _ in range(pairs)]
    print_times(what, *zip(*times, strict=True))
    off = distance(mine, reference)
    print(f"  results differ by {off:.0e} of their norm: {'ok' if off <= tolerance else 'DIFFERENT'}")
    return off <= tolerance


def distance(tree, reference):
    """The norm of the difference of two trees of arrays over the norm of the second."""

    def norm(tree):
        return sum(float(jnp.sum(jnp.square(leaf))) for leaf in jax.tree.leaves(tree)) ** 0.5

    return norm(jax.tree.map(jnp.subtract, tree, reference)) / norm(reference)


def check(what, value, bound, at_least=False):
    """Print a value and its bound; say whether it holds."""
    good, word = (value >= bound, "at least") if at_least else (value <= bound, "at most")
    print(f"{what}: {value:.4g}, {word} {bound:.4g}: {'ok' if good else 'MISSED'}")
    return bool(good)


def draw_tiles(path, columns, rows, tile=96, resample=Image.Resampling.NEAREST):
    """Write a PNG: a column for each name in ``columns``, a row for each of the named ``rows`` of images."""
    gap, left, top = 8, 190, 48 if any(map(str, columns)) else 8
    font = ImageFont.load_default(20)
    size = left + len(columns) * (tile + gap) + gap, top + len(rows) * (tile + gap) + gap
    sheet = Image.new("RGB", size, WHITE)
    pen = ImageDraw.Draw(sheet)
    for j, name in enumerate(columns):
        x = left + j * (tile + gap) + tile // 2
        pen.text((x, top // 2), str(name), INK, font, anchor="mm")
    for i, (name, images) in enumerate(rows.items()):
        y = top + i * (tile + gap)
        pen.text((left - 16, y + tile // 2), name, INK, font, anchor="rm")
        for j, image in enumerate(np.asarray(images, np.float32)):
            levels = np.uint8(255 * np.clip(image, 0, 1))
            picture = Image.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels)
            sheet.paste(picture.resize((tile, tile), resample), (left + j * (tile + gap), y))
    save(sheet, path)


def draw_curves(path, panels, width=1200, height=300):
    """Write a PNG: a panel for each title, of curves (label, values, colour, line width)."""
    left, top, right, bottom, scale = 20, 44, 70, 24, 2  # drawn twice as large, for smooth lines
    sheet = Image.new("RGB", (scale * width, scale * height * len(panels)), WHITE)
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(18 * scale)
    for i, (title, curves) in enumerate(panels.items()):
        values = np.concatenate([np.ravel(curve[1]) for curve in curves])
        low, high = float(values.min()), float(values.max())
        box = [left, i * height + top, width - right, (i + 1) * height - bottom]
        x = left * scale
        pen.text((x, scale * (i * height + 22)), title, INK, font, anchor="lm")
        x += pen.textlength(title, font) + 40 * scale
        for label, curve, colour, line in curves:
            if label:
                y = scale * (i * height + 22)
                pen.line([(x, y), (x + 30 * scale, y)], colour, 3 * scale)
                pen.text((x + 38 * scale, y), label, INK, font, anchor="lm")
                x += pen.textlength(label, font) + 70 * scale
            across = np.linspace(box[0], box[2], len(curve)) * scale
            up = (box[3] - (np.asarray(curve) - low) / (high - low or 1) * (box[3] - box[1])) * scale
            pen.line(
                list(zip(across.tolist(), up.tolist(), strict=True)), colour, line * scale, joint="curve"
            )
        pen.line([scale * v for v in (box[0], box[3] + 6, box[2], box[3] + 6)], GREY, scale)
        for value, y, anchor in ((high, box[1], "rt"), (low, box[3], "rb")):
            pen.text((scale * width - 4, scale * y), f"{value:.2g}", INK, font, anchor=anchor)
    save(sheet.resize((width, height * len(panels)), Image.Resampling.LANCZOS), path)


def save(picture, path):
    picture.save(path)
    print(f"\nPicture: {path}")
