"""Models of other libraries run unchanged under `patch_jax`: the same numbers, on our kernels only."""

import harness
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_cudnn_conv as jcc

pytestmark = pytest.mark.usefixtures("unpatched")
IMAGES = np.random.default_rng(0).normal(size=(2, 11, 12, 4)).astype(np.float32)
# Relative to the largest element. Sums are added in another order, in float32, through six layers and back:
# 1.1e-6 was seen.
TOLERANCE = 2e-5


def run(step, *arguments):
    """The results, and how many custom calls of ours and convolutions of XLA the lowered program has."""
    lowered = jax.jit(step).lower(*arguments)
    return lowered.compile(harness.FAST)(*arguments), harness.counts(lowered.as_text())


def check(step, *arguments, convolutions):
    """`step` has this many convolutions, unpatched all XLA's and patched all ours, and the same results."""
    theirs, before = run(step, *arguments)
    with jcc.patch_jax():
        ours, during = run(step, *arguments)
    assert (before, during) == ((0, convolutions), (convolutions, 0))
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        assert np.any(b)  # something to compare
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE * float(np.abs(b).max()))


# Each model: a strided, a grouped, a dilated and a depthwise convolution, a transposed one, a normalisation.
# The first has no gradient by its input: 5 forward, 4 by the input, 5 by the kernel.
CONVOLUTIONS = 14


def test_flax_linen():
    nn = pytest.importorskip("flax.linen", reason="Flax is not installed")

    class Model(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Conv(8, (3, 3), strides=2)(x))
            x = nn.BatchNorm(use_running_average=False)(x)
            x = nn.relu(nn.Conv(6, (3, 2), feature_group_count=2)(x))
            x = nn.relu(nn.Conv(6, (3, 3), kernel_dilation=(2, 1))(x))
            x = nn.relu(nn.Conv(6, (3, 3), feature_group_count=6)(x))
            return nn.ConvTranspose(3, (3, 4), strides=(2, 2))(x)

    model = Model()
    variables = jax.jit(model.init)(jax.random.key(0), IMAGES)

    def step(params, state, x):
        def loss(params):
            y, changed = model.apply({"params": params} | state, x, mutable=["batch_stats"])
            return jnp.mean(y**2), changed

        return jax.value_and_grad(loss, has_aux=True)(params)

    params = variables["params"]
    check(step, params, {"batch_stats": variables["batch_stats"]}, IMAGES, convolutions=CONVOLUTIONS)


def test_flax_nnx():
    nnx = pytest.importorskip("flax.nnx", reason="Flax is not installed")

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.down = nnx.Conv(4, 8, (3, 3), strides=2, rngs=rngs)
            self.norm = nnx.BatchNorm(8, rngs=rngs)
            self.groups = nnx.Conv(8, 6, (3, 2), feature_group_count=2, rngs=rngs)
            self.dilated = nnx.Conv(6, 6, (3, 3), kernel_dilation=(2, 1), rngs=rngs)
            self.depthwise = nnx.Conv(6, 6, (3, 3), feature_group_count=6, rngs=rngs)
            self.up = nnx.ConvTranspose(6, 3, (3, 4), strides=(2, 2), rngs=rngs)

        def __call__(self, x):
            x = nnx.relu(self.groups(self.norm(nnx.relu(self.down(x)))))
            return self.up(nnx.relu(self.depthwise(nnx.relu(self.dilated(x)))))

    graph, params, others = nnx.split(nnx.jit(lambda: Model(nnx.Rngs(0)))(), nnx.Param, ...)

    def step(params, others, x):
        def loss(params):
            model = nnx.merge(graph, params, others, copy=True)
            y = model(x)
            return jnp.mean(y**2), nnx.state(model, nnx.BatchStat)

        return jax.value_and_grad(loss, has_aux=True)(params)

    check(step, params, others, IMAGES, convolutions=CONVOLUTIONS)


def test_haiku():
    hk = pytest.importorskip("haiku", reason="Haiku is not installed")

    def model(x):
        x = jax.nn.relu(hk.Conv2D(8, 3, stride=2)(x))
        x = hk.BatchNorm(True, True, 0.9)(x, is_training=True)
        x = jax.nn.relu(hk.Conv2D(6, (3, 2), feature_group_count=2)(x))
        x = jax.nn.relu(hk.Conv2D(6, 3, rate=(2, 1))(x))
        x = jax.nn.relu(hk.DepthwiseConv2D(1, 3)(x))
        return hk.Conv2DTranspose(3, (3, 4), stride=2)(x)

    transformed = hk.without_apply_rng(hk.transform_with_state(model))
    params, state = jax.jit(transformed.init)(jax.random.key(0), IMAGES)

    def step(params, state, x):
        def loss(params):
            y, changed = transformed.apply(params, state, x)
            return jnp.mean(y**2), changed

        return jax.value_and_grad(loss, has_aux=True)(params)

    check(step, params, state, IMAGES, convolutions=CONVOLUTIONS)


def test_equinox():
    """Its layers take one sample, channels first: under `vmap` it is still one convolution each."""
    eqx = pytest.importorskip("equinox", reason="Equinox is not installed")
    keys, f32 = jax.random.split(jax.random.key(0), 5), {"dtype": jnp.float32}
    relu = eqx.nn.Lambda(jax.nn.relu)
    model = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(4, 8, 3, stride=2, padding=1, key=keys[0], **f32),
            relu,
            eqx.nn.GroupNorm(2, 8, **f32),
            eqx.nn.Conv2d(8, 6, (3, 2), groups=2, padding="SAME", key=keys[1], **f32),
            relu,
            eqx.nn.Conv2d(6, 6, 3, dilation=(2, 1), padding=(2, 1), key=keys[2], **f32),
            relu,
            eqx.nn.Conv2d(6, 6, 3, groups=6, padding=1, key=keys[3], **f32),
            relu,
            eqx.nn.ConvTranspose2d(6, 3, (3, 4), stride=2, padding=1, output_padding=1, key=keys[4], **f32),
        ]
    )
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def step(params, x):
        def loss(params):
            return jnp.mean(jax.vmap(eqx.combine(params, static))(x) ** 2)

        return jax.value_and_grad(loss)(params)

    check(step, params, IMAGES.transpose(0, 3, 1, 2), convolutions=CONVOLUTIONS)


def test_keras(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))  # the import writes a file of settings
    keras = pytest.importorskip("keras", reason="Keras is not installed")
    if keras.backend.backend() != "jax":
        pytest.skip("Keras was imported before, on another backend")
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Conv2D(8, 3, strides=2, padding="same", activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Conv2D(6, (3, 2), groups=2, padding="same", activation="relu"),
            keras.layers.Conv2D(6, 3, dilation_rate=(2, 1), padding="same", activation="relu"),
            keras.layers.DepthwiseConv2D(3, padding="same", activation="relu"),
            keras.layers.Conv2DTranspose(3, (3, 4), strides=2, padding="same"),
        ]
    )
    model.build(IMAGES.shape)

    def step(params, others, x):
        def loss(params):
            y, changed = model.stateless_call(params, others, x, training=True)
            return jnp.mean(y**2), changed

        return jax.value_and_grad(loss, has_aux=True)(params)

    def values(variables):
        return [variable.value for variable in variables]

    check(
        step,
        values(model.trainable_variables),
        values(model.non_trainable_variables),
        IMAGES,
        convolutions=CONVOLUTIONS,
    )


def test_training_loop_in_one_program():
    """Steps of SGD in a while loop, over a model whose layers are a scan of checkpointed blocks."""
    nn = pytest.importorskip("flax.linen", reason="Flax is not installed")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            return x + nn.relu(nn.Conv(4, (3, 3))(x)), None

    layers = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=3)()
    params = jax.jit(layers.init)(jax.random.key(0), IMAGES, None)

    def loss(params, x):
        return jnp.mean((layers.apply(params, x, None)[0] - 2 * x) ** 2)

    def train(params, x):
        def body(state):
            i, params, _ = state
            value, gradients = jax.value_and_grad(loss)(params, x)
            return i + 1, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

        return lax.while_loop(lambda state: state[0] < 4, body, (0, params, jnp.float32(0)))

    # Forward, again in the backward pass, and both gradients.
    check(train, params, IMAGES, convolutions=4)
