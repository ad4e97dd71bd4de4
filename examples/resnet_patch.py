"""Train an unchanged Flax ResNet on real handwritten digits, with and without ``jcc.patch_jax()``.

The model is plain Flax and knows nothing of this library. Its training step is compiled twice, once
inside of ``with jcc.patch_jax():``. Both programs then train from the same parameters on the same
batches, in turns, so that their losses and times can be compared. Run it with ``python
examples/resnet_patch.py``, after ``pip install '.[examples]'``. It writes a picture of both losses.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import BLUE, ORANGE, check, draw_curves, parse, print_times, seconds
from flax import linen as nn
from sklearn.datasets import load_digits

import jax_cudnn_conv as jcc

BATCH, HELD_OUT = 100, 297  # of 1797 digits; 1500 remain for training
SAME_STEPS, TOLERANCE = 5, 1e-3  # rounding grows from step to step: the first losses are compared
OPTIMIZER = optax.sgd(0.05, momentum=0.9)


class ResNet(nn.Module):
    """Three stages of basic blocks, for images of 8x8."""

    @nn.compact
    def __call__(self, x, train):
        conv = functools.partial(nn.Conv, kernel_size=(3, 3), use_bias=False)
        norm = functools.partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        x = nn.relu(norm()(conv(32)(x)))
        for features, stride in ((32, 1), (64, 2), (64, 1), (128, 2), (128, 1)):
            y = nn.relu(norm()(conv(features, strides=stride)(x)))
            y = norm()(conv(features)(y))
            if x.shape != y.shape:
                x = conv(features, kernel_size=(1, 1), strides=stride)(x)
            x = nn.relu(x + y)
        return nn.Dense(10)(x.mean((1, 2)))


MODEL = ResNet()


def step(variables, state, images, labels):
    """One step of training; also returns the loss."""

    def loss(params):
        logits, updated = MODEL.apply(variables | {"params": params}, images, True, mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), updated

    (value, updated), grads = jax.value_and_grad(loss, has_aux=True)(variables["params"])
    updates, state = OPTIMIZER.update(grads, state)
    return {"params": optax.apply_updates(variables["params"], updates), **updated}, state, value


def batches(seed, epochs):
    """Scikit-learn's digits in [0, 1], in a new order in every epoch."""
    digits, rng = load_digits(), np.random.default_rng(seed)
    images = jnp.asarray(digits.images[..., None] / 16, jnp.float32)
    for _ in range(epochs):
        order = rng.permutation(len(images) - HELD_OUT)
        for k in range(0, len(order), BATCH):
            chosen = order[k : k + BATCH]
            yield images[chosen], jnp.asarray(digits.target[chosen])


def main():
    """Train both ways, report, draw; the exit status says whether everything held."""
    args = parse(__doc__, __file__)
    epochs, bound = (2, 0.5) if args.quick else (10, 0.95)
    digits = load_digits()
    held_out = jnp.asarray(digits.images[-HELD_OUT:, ..., None] / 16, jnp.float32)

    variables = jax.jit(MODEL.init, static_argnums=2)(jax.random.key(args.seed), held_out[:1], False)
    start = variables, OPTIMIZER.init(variables["params"])
    example = next(batches(args.seed, 1))
    plain = jax.jit(step).lower(*start, *example).compile()
    with jcc.patch_jax():
        patched = jax.jit(step).lower(*start, *example).compile()

    states, times, losses = [start, start], ([], []), ([], [])
    for k, batch in enumerate(batches(args.seed, epochs)):
        for i, program in enumerate((patched, plain)):
            took, (*states[i], loss) = seconds(program, *states[i], *batch)
            times[i].append(took)
            losses[i].append(float(loss))
        if k % 15 == 14:
            ours, theirs = (np.mean(values[-15:]) for values in losses)
            print(f"epoch {k // 15 + 1:3}  loss {ours:.4f} patched, {theirs:.4f} plain")

    print_times(f"training step, batch {BATCH}", *times)
    off = max(abs(a - b) / b for a, b in zip(*(values[:SAME_STEPS] for values in losses), strict=True))
    print()
    good = check(f"relative difference of the first {SAME_STEPS} losses", off, TOLERANCE)
    good &= check("last loss / first loss", losses[0][-1] / losses[0][0], 0.5)
    for name, (trained, _) in zip(("patched", "plain"), states, strict=True):
        guess = MODEL.apply(trained, held_out, False).argmax(-1)
        accuracy = float(np.mean(guess == digits.target[-HELD_OUT:]))
        good &= check(
            f"accuracy on {HELD_OUT} digits that were held out, {name}", accuracy, bound, at_least=True
        )
    curves = [("plain JAX", losses[1], ORANGE, 6), ("under patch_jax", losses[0], BLUE, 2)]
    draw_curves(args.output, {"training loss": curves})
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
