"""Predict the next sample of a real electrocardiogram with a stack of dilated causal convolutions.

The network is a small WaveNet (van den Oord et al. 2016, arXiv:1609.03499). It sees 1024 samples of an
ECG that PyWavelets ships, three heart beats: it learns from two of them and is judged on the third.
Run it with ``python examples/wavenet.py``, after ``pip install '.[examples]'``. It writes a picture
of the third beat, the prediction of each of its samples, and the errors.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pywt.data
from common import BLUE, GREY, INK, ORANGE, check, compare, compile_both, draw_curves, parse

import jax_cudnn_conv as jcc

SPLIT = 680  # between the second and the third beat
BATCH, CHANNELS, DILATIONS = 8, 32, (1, 2, 4, 8, 16, 32)  # a prediction sees 66 samples


def init(key):
    """He's initialisation, and zero for the last layer: at first, the last sample is repeated."""
    shapes = {"first": (2, 1, CHANNELS), "last": (1, CHANNELS, 1)}
    for dilation in DILATIONS:
        shapes |= {f"gated{dilation}": (2, CHANNELS, 2 * CHANNELS), f"out{dilation}": (1, CHANNELS, CHANNELS)}
    params = {}
    for name, shape in shapes.items():
        key, subkey = jax.random.split(key)
        kernel = jax.random.normal(subkey, shape) * (1 / np.prod(shape[:-1])) ** 0.5
        params[name] = {"kernel": kernel * (name != "last"), "bias": jnp.zeros(shape[-1])}
    return params


def predict(params, signal):
    """(N, T, 1) -> (N, T, 1): for each sample, what comes after it. Nothing later is seen."""

    def causal(x, name, dilation=1):
        reach = dilation * (params[name]["kernel"].shape[0] - 1)
        return jcc.conv(x, **params[name], dilation=dilation, padding=[(reach, 0)])

    x, total = causal(signal, "first"), 0
    for dilation in DILATIONS:
        filtered, gate = jnp.split(causal(x, f"gated{dilation}", dilation), 2, -1)
        y = causal(jnp.tanh(filtered) * jax.nn.sigmoid(gate), f"out{dilation}")
        x, total = x + y, total + y
    return signal + causal(jax.nn.relu(total), "last")


def loss(params, signal):
    return jnp.mean((predict(params, signal[:, :-1]) - signal[:, 1:]) ** 2)


def make_step(optimizer):
    def step(params, state, signal):
        value, grads = jax.value_and_grad(loss)(params, signal)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value, grads

    return step


@functools.partial(jax.jit, static_argnums=2)
def augment(key, signal, count):
    """Beats of other heights on other levels, with a little noise: two are few to learn from."""
    height, level, noise = jax.random.split(key, 3)
    shape = (count, 1, 1)
    copies = signal[None, :, None] * jax.random.uniform(height, shape, minval=0.7, maxval=1.3)
    copies += 0.5 * jax.random.normal(level, shape)
    return copies + 0.01 * jax.random.normal(noise, copies.shape)


def main():
    """Train, report, draw; the exit status says whether everything held."""
    args = parse(__doc__, __file__)
    steps, pairs, bound = (60, 3, 1.0) if args.quick else (1500, 30, 0.8)
    ecg = pywt.data.ecg().astype(np.float32)
    ecg = jnp.asarray((ecg - ecg[:SPLIT].mean()) / ecg[:SPLIT].std())

    key = jax.random.key(args.seed)
    params = init(key)
    optimizer = optax.adamw(optax.cosine_decay_schedule(3e-3, steps))
    state, step = optimizer.init(params), make_step(optimizer)
    batch = augment(key, ecg[:SPLIT], BATCH)
    ours, theirs = compile_both(step, params, state, batch)
    gradients = (lambda *a, program=program: program(*a)[2:] for program in (ours, theirs))
    good = compare(f"training step, batch {BATCH}", *gradients, (params, state, batch), pairs)

    for k in range(steps):
        batch = augment(jax.random.fold_in(key, k), ecg[:SPLIT], BATCH)
        params, state, value, _ = ours(params, state, batch)
        if k % (steps // 10) == 0 or k == steps - 1:
            print(f"step {k:5}  loss {float(value):.5f}")

    prediction = np.ravel(jax.jit(predict)(params, ecg[None, :, None]))[SPLIT - 1 : -1]
    truth, before, earlier = (np.asarray(ecg[SPLIT - k : len(ecg) - k]) for k in range(3))
    errors = {"prediction": prediction - truth, "last sample again": before - truth}
    errors["straight line through the last two"] = 2 * before - earlier - truth
    print("\nRoot mean square of the errors on the third beat, in standard deviations of the signal")
    rms = {name: float(np.sqrt(np.mean(error**2))) for name, error in errors.items()}
    for name, value in rms.items():
        print(f"  {name:36}  {value:.4f}")
    best = min(value for name, value in rms.items() if name != "prediction")
    good &= check("prediction / the better of the others", rms["prediction"] / best, bound)

    panels = {
        "The third beat": [
            ("signal", truth, GREY, 7),
            ("each sample predicted from those before it", prediction, BLUE, 2),
        ],
        "Errors": [
            ("last sample again", errors["last sample again"], ORANGE, 2),
            ("prediction", errors["prediction"], BLUE, 2),
            ("", np.zeros(2), INK, 1),
        ],
    }
    draw_curves(args.output, panels)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
