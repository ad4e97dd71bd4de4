"""Remove noise from real photographs with a Flax nnx U-Net of this library's layers.

``jcc.nnx.ConvTranspose`` has what Flax's lacks: groups, and ``output_padding`` for the size that a
convolution with stride 2 came from. The two photographs are scikit-learn's: the network learns from
the left and the right of each and is judged on crops of the middle quarter. Run it with ``python
examples/unet_nnx.py``, after ``pip install '.[examples]'``. It writes a picture of such crops.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import check, compare, compile_both, draw_tiles, parse
from flax import nnx
from PIL import Image
from sklearn.datasets import load_sample_images

import jax_cudnn_conv as jcc

CROP, HELD_OUT_CROP = 48, 128
NOISE = 0.15  # standard deviation; pixels are in [0, 1]


class UNet(nnx.Module):
    """Three resolutions; the result is the input minus what the network takes for noise."""

    def __init__(self, rngs):
        conv = functools.partial(jcc.nnx.Conv, kernel_size=(3, 3), padding=1, rngs=rngs)
        up = functools.partial(
            jcc.nnx.ConvTranspose,
            kernel_size=(3, 3),
            strides=2,
            padding=1,
            output_padding=1,  # a convolution with stride 2 makes 24 of 47 and of 48: we mean 48
            use_consistent_padding=True,
            transpose_kernel=True,
            rngs=rngs,
        )
        self.stem1, self.stem2 = conv(3, 32), conv(32, 32)
        self.down1, self.half = conv(32, 64, strides=2), conv(64, 64, feature_group_count=4)
        self.down2, self.quarter = conv(64, 128, strides=2), conv(128, 128, feature_group_count=4)
        self.up2, self.merge2 = up(128, 64, feature_group_count=4), conv(128, 64)
        self.up1, self.merge1 = up(64, 32, feature_group_count=4), conv(64, 32)
        self.noise = conv(32, 3, kernel_init=nnx.initializers.zeros)

    def __call__(self, image):
        relu = nnx.relu
        full = relu(self.stem2(relu(self.stem1(image))))
        half = relu(self.half(relu(self.down1(full))))
        quarter = relu(self.quarter(relu(self.down2(half))))
        half = relu(self.merge2(jnp.concatenate([relu(self.up2(quarter)), half], -1)))
        full = relu(self.merge1(jnp.concatenate([relu(self.up1(half)), full], -1)))
        return image - self.noise(full)


def crops(rng, photos, count, size, held_out=False):
    """Crops of the left and the right of the photographs, or of the middle quarter."""
    result = []
    for k in range(count):
        photo = photos[k % len(photos)]
        width = photo.shape[1]
        a, b = 3 * width // 8, 5 * width // 8
        left, right = (a, b) if held_out else ((0, a), (b, width))[rng.integers(2)]
        y = rng.integers(photo.shape[0] - size + 1)
        x = rng.integers(left, right - size + 1)
        crop = photo[y : y + size, x : x + size]
        if not held_out:  # other colours, inverted, mirrored: two photographs are few to learn from
            crop = crop[:, :: rng.choice([-1, 1]), rng.permutation(3)]
            crop = crop if rng.integers(2) else 1 - crop
        result.append(crop)
    return np.stack(result)


def add_noise(rng, clean):
    return clean + NOISE * rng.standard_normal(clean.shape, np.float32)


def decibels(restored, clean):
    """The peak signal-to-noise ratio."""
    return float(-10 * np.log10(np.mean((np.clip(restored, 0, 1) - clean) ** 2)))


def blur(images):
    """The mean of 3x3 pixels."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), "edge")
    rows, columns = images.shape[1:3]
    return sum(padded[:, i : i + rows, j : j + columns] for i in range(3) for j in range(3)) / 9


def main():
    """Train, report, draw; the exit status says whether everything held."""
    args = parse(__doc__, __file__)
    count, steps, pairs, bound = (2, 10, 1, 0.0) if args.quick else (16, 1000, 5, 6.0)
    rng = np.random.default_rng(args.seed)
    photos = [np.float32(photo / 255) for photo in load_sample_images().images]

    graph, params = nnx.split(UNet(nnx.Rngs(args.seed)))
    optimizer = optax.adam(optax.cosine_decay_schedule(2e-3, steps))
    state = optimizer.init(params)

    def loss(params, noisy, clean):
        return jnp.mean((nnx.merge(graph, params)(noisy) - clean) ** 2)

    def step(params, state, noisy, clean):
        value, grads = jax.value_and_grad(loss)(params, noisy, clean)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value, grads

    clean = crops(rng, photos, count, CROP)
    batch = add_noise(rng, clean), clean
    ours, theirs = compile_both(step, params, state, *batch)
    gradients = (lambda *a, program=program: program(*a)[2:] for program in (ours, theirs))
    good = compare(f"training step, batch {count}", *gradients, (params, state, *batch), pairs)

    for k in range(steps):
        clean = crops(rng, photos, count, CROP)
        params, state, value, _ = ours(params, state, add_noise(rng, clean), clean)
        if k % (steps // 10) == 0 or k == steps - 1:
            print(f"step {k:5}  loss {float(value):.5f}")

    clean = crops(np.random.default_rng(2), photos, 16, HELD_OUT_CROP, held_out=True)
    noisy = add_noise(rng, clean)
    restored = np.asarray(jax.jit(nnx.merge(graph, params))(noisy))
    print(f"\nPeak signal-to-noise ratio on {len(clean)} crops that were held out")
    for name, images in {"noisy": noisy, "blurred 3x3": blur(noisy), "restored": restored}.items():
        print(f"  {name:12}  {decibels(images, clean):.2f} dB")
    gain = decibels(restored, clean) - decibels(noisy, clean)
    good &= check("gain in dB", gain, bound, at_least=True)

    rows = {"noisy": noisy[:4], "restored": restored[:4], "clean": clean[:4]}
    draw_tiles(args.output, [""] * 4, rows, tile=2 * HELD_OUT_CROP, resample=Image.Resampling.BICUBIC)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
