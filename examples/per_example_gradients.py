"""Gradients of every single example (DP-SGD), and gradients of gradients (MAML), on real digits.

``vmap(grad(loss))`` gives each example's gradient by the kernels: here it stays one convolution for
each layer. DP-SGD (Abadi et al. 2016, arXiv:1607.00133) clips each of them and adds noise to the sum.
MAML (Finn et al. 2017, arXiv:1703.03400) differentiates through a step of gradient descent: it looks
for parameters that learn to tell two digits apart from five examples of each. Run it with ``python
examples/per_example_gradients.py``, after ``pip install '.[examples]'``. It writes a picture of the
digits with the smallest and the largest gradients.
"""

import functools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from common import check, compare, compile_both, draw_tiles, parse
from sklearn.datasets import load_digits

import jax_cudnn_conv as jcc

HELD_OUT = 297  # of 1797 digits; 1500 remain for training
CLIP, NOISE, RATE = 1.0, 1.0, 0.5  # norm of one example's gradient; noise in units of it
SHOTS, TASKS, INNER_RATE = 5, 8, 0.4
NEW_DIGITS = (7, 8, 9)  # MAML does not see these before it is tested on them
META_OPTIMIZER = optax.adam(3e-3)


def init(key, classes):
    """He's initialisation."""
    shapes = {"one": (3, 3, 1, 16), "two": (3, 3, 16, 32), "three": (3, 3, 32, 32), "dense": (32, classes)}
    params = {}
    for name, shape in shapes.items():
        key, subkey = jax.random.split(key)
        kernel = jax.random.normal(subkey, shape) * (2 / np.prod(shape[:-1])) ** 0.5
        params[name] = {"kernel": kernel, "bias": jnp.zeros(shape[-1])}
    return params


def logits(params, images):
    """(N, 8, 8, 1) -> (N, classes)."""
    x = jcc.conv(images, **params["one"], activation="relu")
    x = jcc.conv(x, **params["two"], strides=2, activation="relu")
    x = jcc.conv(x, **params["three"], strides=2, activation="relu")
    return x.mean((1, 2)) @ params["dense"]["kernel"] + params["dense"]["bias"]


def loss(params, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, images), labels).mean()


def example_gradients(params, images, labels):
    """The gradient of each example, and its norm over all parameters."""
    grads = jax.vmap(jax.grad(loss), (None, 0, 0))(params, images[:, None], labels[:, None])
    squares = (jnp.sum(jnp.square(g), range(1, g.ndim)) for g in jax.tree.leaves(grads))
    return grads, jnp.sqrt(sum(squares))


def private_step(params, images, labels, key):
    """A step of DP-SGD."""
    grads, norms = example_gradients(params, images, labels)
    weights = jnp.minimum(1, CLIP / norms)
    leaves, structure = jax.tree.flatten(jax.tree.map(lambda g: jnp.tensordot(weights, g, 1), grads))
    keys = jax.random.split(key, len(leaves))
    noisy = [g + NOISE * CLIP * jax.random.normal(k, g.shape) for g, k in zip(leaves, keys, strict=True)]
    mean = jax.tree.unflatten(structure, [g / len(images) for g in noisy])
    return jax.tree.map(lambda p, g: p - RATE * g, params, mean)


def adapt(params, images, labels):
    """The inner loop: one step of gradient descent on a task's examples."""
    return jax.tree.map(lambda p, g: p - INNER_RATE * g, params, jax.grad(loss)(params, images, labels))


def meta_gradient(params, support, query):
    """Of the loss after adaptation, averaged over tasks: a gradient through a gradient."""

    def task_loss(params, support, query):
        return loss(adapt(params, *support), *query)

    return jax.grad(lambda p: jax.vmap(task_loss, (None, 0, 0))(p, support, query).mean())(params)


def draw_tasks(rng, images, target, digits, count):
    """Tasks of two digits each: ``SHOTS`` examples of both to learn from, 10 of both to judge by."""
    support, query = ([], []), ([], [])
    for _ in range(count):
        pair = rng.choice(digits, 2, replace=False)
        chosen = np.stack([rng.choice(np.flatnonzero(target == d), SHOTS + 10, replace=False) for d in pair])
        for part, to in ((chosen[:, :SHOTS], support), (chosen[:, SHOTS:], query)):
            to[0].append(images[part.ravel()])
            to[1].append(np.repeat([0, 1], part.shape[1]))
    return tuple(tuple(map(jnp.asarray, map(np.stack, part))) for part in (support, query))


def main():
    """Train both ways, report, draw; the exit status says whether everything held."""
    args = parse(__doc__, __file__)
    count, pairs, epochs, meta_steps, bounds = 250, 5, 100, 1000, (0.8, 0.8)
    if args.quick:
        count, pairs, epochs, meta_steps, bounds = 50, 1, 2, 30, (0.3, 0.5)
    digits, rng = load_digits(), np.random.default_rng(args.seed)
    key = jax.random.key(args.seed)
    images, target = np.float32(digits.images[..., None] / 16), digits.target

    params, batch = init(key, 10), (jnp.asarray(images[:count]), jnp.asarray(target[:count]))
    ours, theirs = compile_both(private_step, params, *batch, key)
    good = compare(f"DP-SGD step, batch {count}", ours, theirs, (params, *batch, key), pairs)
    for _ in range(epochs):
        order = rng.permutation(len(images) - HELD_OUT).reshape(-1, count)
        for chosen in order:
            key, subkey = jax.random.split(key)
            params = ours(params, images[chosen], jnp.asarray(target[chosen]), subkey)
    hits = logits(params, jnp.asarray(images[-HELD_OUT:])).argmax(-1) == target[-HELD_OUT:]
    good &= check(
        f"accuracy on {HELD_OUT} digits that were held out", float(hits.mean()), bounds[0], at_least=True
    )

    meta = init(key, 2)
    old = [d for d in range(10) if d not in NEW_DIGITS]
    tasks = functools.partial(draw_tasks, rng, images, target)
    first = tasks(old, TASKS)
    ours, theirs = compile_both(meta_gradient, meta, *first)
    good &= compare(f"MAML gradient, {TASKS} tasks", ours, theirs, (meta, *first), pairs)
    state = META_OPTIMIZER.init(meta)
    for _ in range(meta_steps):
        updates, state = META_OPTIMIZER.update(ours(meta, *tasks(old, TASKS)), state)
        meta = optax.apply_updates(meta, updates)
    (support, query), before_after = tasks(NEW_DIGITS, 50), []
    for start in (init(key, 2), meta):
        adapted = jax.vmap(adapt, (None, 0, 0))(start, *support)
        before_after.append(float((jax.vmap(logits)(adapted, query[0]).argmax(-1) == query[1]).mean()))
    print(f"Two new digits after one step on {SHOTS} of each, from random parameters: {before_after[0]:.4g}")
    good &= check("from MAML's parameters", before_after[1], bounds[1], at_least=True)

    _, norms = jax.jit(example_gradients)(params, jnp.asarray(images), jnp.asarray(target))
    order = np.argsort(norms)
    rows = {"smallest gradients": order[:10], "largest gradients": order[-10:]}
    draw_tiles(args.output, [""] * 10, {name: images[chosen] for name, chosen in rows.items()})
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
