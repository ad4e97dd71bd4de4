"""Train a convolutional denoising autoencoder on real handwritten digits, every convolution ours.

The network sees 8x8 digits with noise added and a 4x4 square blanked out, and has to give back the
clean image. Copying its input is therefore no solution, in spite of the skip connections. Run it
with ``make demo``, or with ``python examples/demo.py`` after ``pip install '.[demo]'``.
"""

import argparse
import functools
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import draw_tiles, print_times, seconds
from sklearn.datasets import load_digits
from tqdm import tqdm

import jax_cudnn_conv as jcc

BATCH = 100
HELD_OUT = 297  # the last ones; 1500 remain for training
NOISE, SQUARE = 0.1, 4  # standard deviation (pixels are in [0, 1]); edge of the blanked square
BOUND, BOUND_QUICK = 0.25, 0.6  # held-out error allowed / corrupted input's error
OPTIMIZER = optax.adam(1e-3)

# ---------------------------------------------------------------------------------- the model

# Name: (kernel shape, output features, inputs that each output sums), and the size of the output.
# Kernels are (h, w, in / groups, out). Those of a transposed convolution have the shape of the
# convolution that it transposes, (h, w, out / groups, in), and with stride 2 only a quarter of
# their taps meet an input.
LAYERS = {
    "stem": ((3, 3, 1, 32), 32, 9 * 1),  # 8x8
    "down1": ((3, 3, 8, 64), 64, 9 * 8),  # 4x4, 4 groups
    "down2": ((3, 3, 64, 128), 128, 9 * 64),  # 2x2
    "middle": ((3, 3, 1, 128), 128, 9 * 1),  # 2x2, depthwise
    "up2": ((3, 3, 32, 128), 32, 9 * 128 / 4),  # 4x4, transposed
    "up1": ((3, 3, 8, 96), 32, 9 * 24 / 4),  # 8x8, transposed, 4 groups
    "image": ((3, 3, 64, 1), 1, 9 * 64),  # 8x8
}


def init(key):
    """Random kernels (He's initialisation) and zero biases."""
    params = {}
    for name, (shape, features, fan_in) in LAYERS.items():
        key, subkey = jax.random.split(key)
        kernel = jax.random.normal(subkey, shape) * (2 / fan_in) ** 0.5
        params[name] = {"kernel": kernel, "bias": jnp.zeros(features)}
    return params


def reconstruct(params, images):
    """The autoencoder: (N, 8, 8, 1) -> (N, 8, 8, 1)."""
    p = params
    down = functools.partial(jcc.conv, strides=2, padding=1, activation="relu")
    # A stride-2 convolution maps extents 3 and 4 both to 2: output_padding=1 says that we mean 4.
    up = functools.partial(jcc.conv_transpose, strides=2, padding=1, output_padding=1)

    stem = jcc.conv(images, **p["stem"], activation="relu")
    half = down(stem, **p["down1"], groups=4)
    quarter = down(half, **p["down2"])
    quarter = jcc.conv(quarter, **p["middle"], groups=128, activation="relu")
    up2 = up(quarter, **p["up2"], activation="relu")
    half = jnp.concatenate([up2, half], axis=-1)
    up1 = up(half, **p["up1"], groups=4, activation="relu")
    full = jnp.concatenate([up1, stem], axis=-1)
    return jcc.conv(full, **p["image"])


def loss(params, corrupted, clean):
    """The mean squared error of the reconstruction."""
    return jnp.mean((reconstruct(params, corrupted) - clean) ** 2)


# ------------------------------------------------------------------------- the data, training


def load():
    """Scikit-learn's real digits in [0, 1]: training images, held-out images and their labels."""
    digits = load_digits()
    images = jnp.asarray(digits.images[..., None] / 16, jnp.float32)
    return images[:-HELD_OUT], images[-HELD_OUT:], digits.target[-HELD_OUT:]


@jax.jit
def corrupt(key, images):
    """Add noise, then blank a square at a random place of each image."""
    noise_key, corner_key = jax.random.split(key)
    noisy = images + NOISE * jax.random.normal(noise_key, images.shape)
    corner = jax.random.randint(corner_key, (len(images), 2, 1), 0, 8 - SQUARE + 1)
    offset = jnp.arange(8) - corner
    rows, columns = jnp.moveaxis((offset >= 0) & (offset < SQUARE), 1, 0)
    blank = rows[:, :, None] & columns[:, None, :]
    return jnp.where(blank[..., None], 0, noisy)


@jax.jit
def step(params, state, corrupted, clean):
    """One step of training: also returns the loss and its gradients."""
    value, grads = jax.value_and_grad(loss)(params, corrupted, clean)
    updates, state = OPTIMIZER.update(grads, state)
    return optax.apply_updates(params, updates), state, value, grads


def train(key, params, images, epochs):
    """Minimise the loss, with a new order and new corruption in every epoch."""
    state = OPTIMIZER.init(params)
    bar = tqdm(range(1, epochs + 1), desc="training", unit="epoch", mininterval=0.5)
    for epoch in bar:
        order_key, corruption_key = jax.random.split(jax.random.fold_in(key, epoch))
        clean = jax.random.permutation(order_key, images)
        corrupted = corrupt(corruption_key, clean)
        losses = []
        for k in range(0, len(images), BATCH):
            batch = corrupted[k : k + BATCH], clean[k : k + BATCH]
            params, state, value, _ = step(params, state, *batch)
            losses.append(value)
        mean = float(np.mean(losses))
        bar.set_postfix(loss=f"{mean:.5f}")
        if epoch == 1 or epoch % max(1, epochs // 10) == 0 or epoch == epochs:
            bar.write(f"epoch {epoch:4}  loss {mean:.5f}")
    return params


# ---------------------------------------------------------------------------------- the reports


def report_kernels(params, corrupted, clean):
    """Print which kernel runs each layer, forward and backward."""
    # Every layer has another geometry, so a convolution of the gradient is known by its problem.
    forward_pass = jcc.explain(loss, params, corrupted, clean)
    names = {e.problem: name for name, e in zip(LAYERS, forward_pass, strict=True)}
    runs = {name: [] for name in LAYERS}
    for e in jcc.explain(jax.grad(loss), params, corrupted, clean):
        runs[names[e.problem]].append(e)
    print("\nWhich kernel runs each layer")
    print("(g groups, n batch, i and o features in and out, image extents, k kernel, s stride)")
    for name, (forward, *backward) in runs.items():
        print(f"{name}: {forward.problem}")
        print(f"  forward          {forward.direction:10}  {forward.kernel}")
        for e in backward:
            label = "filter" if e.direction == "conv_wgrad" else "data"
            print(f"  backward {label:7} {e.direction:10}  {e.kernel}")


def report_speed(params, corrupted, clean, pairs):
    """Time the step on our kernels and XLA's in turns; say whether both give the same values."""
    state = OPTIMIZER.init(params)

    def run(backend):
        with jcc.options(backend=backend):  # part of jit's cache key: the step is compiled for each
            took, result = seconds(step, params, state, corrupted, clean)
            return took, result[2:]

    (_, (ours, our_grads)), (_, (xlas, xla_grads)) = run("auto"), run("xla")  # compiles
    times = {"auto": [], "xla": []}
    for k in range(pairs):
        for backend in ("auto", "xla") if k % 2 else ("xla", "auto"):
            times[backend].append(run(backend)[0])
    print_times(f"training step, batch {len(clean)}", times["auto"], times["xla"])

    off = max(
        float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b))
        for a, b in zip(jax.tree.leaves(our_grads), jax.tree.leaves(xla_grads), strict=True)
    )
    same = abs(ours - xlas) <= 1e-5 * xlas and off <= 1e-4
    print(f"  losses {ours:.8f} and {xlas:.8f}: {'ok' if same else 'DIFFERENT'}", end="")
    print(f" (gradients differ by {off:.0e} of their norm)")
    return bool(same)


def report_error(params, train_images, corrupted, clean, fraction):
    """Print the held-out error, its bound and those of trivial answers; say if the bound holds."""
    error = float(loss(params, corrupted, clean))
    own = float(jnp.mean((corrupted - clean) ** 2))
    mean_image = float(jnp.mean((train_images.mean(0) - clean) ** 2))
    bound = fraction * own
    print(f"\nMean squared error on {len(clean)} digits that were held out")
    for name, value in {
        "corrupted input": own,
        "mean of the training images": mean_image,
        f"bound ({fraction} x corrupted input)": bound,
        "reconstruction": error,
    }.items():
        print(f"  {name:30}  {value:.5f}")
    print("  within the bound" if error <= bound else "  MISSED THE BOUND")
    return error <= bound


def main():
    """Train, report, draw; the exit status says whether the bound and the comparison held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".png"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="3 epochs and a wide bound, for tests")
    args = parser.parse_args()
    epochs, pairs, fraction = (3, 5, BOUND_QUICK) if args.quick else (args.epochs, 50, BOUND)

    init_key, train_key, test_key = jax.random.split(jax.random.key(args.seed), 3)
    train_images, clean, labels = load()
    corrupted = corrupt(test_key, clean)
    print(f"{len(train_images)} digits to train on, {len(clean)} held out, seed {args.seed}")

    params = train(train_key, init(init_key), train_images, epochs)
    report_kernels(params, corrupted[:BATCH], clean[:BATCH])
    same = report_speed(params, corrupted[:BATCH], clean[:BATCH], pairs)
    good = report_error(params, train_images, corrupted, clean, fraction)

    rows = {
        "clean": clean,
        "corrupted input": corrupted,
        "reconstruction": reconstruct(params, corrupted),
    }
    shown = [int(np.flatnonzero(labels == digit)[0]) for digit in range(10)]  # one of each
    draw_tiles(args.output, labels[shown], {name: np.asarray(rows[name])[shown] for name in rows})
    return 0 if same and good else 1


if __name__ == "__main__":
    sys.exit(main())
