"""Whole models as Flax modules that know nothing of this library: what `bench_models.py` times.

Written from the papers, channels last. Parameters are float32, layers compute in `dtype`, and the
batch normalisation uses the statistics of the batch, in float32, without running averages. Every
model ends in logits, and its loss is the cross entropy of integer labels. `models_torch.py` has the
same models in PyTorch.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

LEARNING_RATE = 0.01
RESIDUAL = 0.1  # scale of a block that is added to its input: 1 amplifies rounding too much to compare


class Norm(nn.Module):
    """Batch normalisation, and the activation that follows it."""

    activation: Callable | None = nn.relu
    scale: float = 1.0  # before training

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.constant(self.scale), x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        x32, axes = x.astype(jnp.float32), tuple(range(x.ndim - 1))
        mean = x32.mean(axes)
        variance = jnp.square(x32).mean(axes) - jnp.square(mean)
        y = (x32 - mean) * (scale * jax.lax.rsqrt(variance + 1e-5)) + bias
        return (self.activation(y) if self.activation else y).astype(x.dtype)


class ResNet18(nn.Module):
    """He et al. 2015, arXiv:1512.03385, table 1."""

    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x):
        conv = functools.partial(nn.Conv, use_bias=False, dtype=self.dtype)
        x = Norm()(conv(64, (7, 7), (2, 2), padding=3)(x))
        x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
        for features, stride in (
            (64, 1),
            (64, 1),
            (128, 2),
            (128, 1),
            (256, 2),
            (256, 1),
            (512, 2),
            (512, 1),
        ):
            y = Norm()(conv(features, (3, 3), (stride, stride), padding=1)(x))
            y = Norm(None, RESIDUAL)(conv(features, (3, 3), padding=1)(y))
            if x.shape != y.shape:
                x = Norm(None)(conv(features, (1, 1), (stride, stride))(x))
            x = nn.relu(x + y)
        return nn.Dense(1000, dtype=self.dtype)(x.mean((1, 2)))


class MobileNetV2(nn.Module):
    """Sandler et al. 2018, arXiv:1801.04381, table 2, without dropout."""

    dtype: jnp.dtype
    # expansion, features, blocks, stride of the first block
    stages = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )

    @nn.compact
    def __call__(self, x):
        conv = functools.partial(nn.Conv, use_bias=False, dtype=self.dtype)
        x = Norm(nn.relu6)(conv(32, (3, 3), (2, 2), padding=1)(x))
        for expansion, features, blocks, first in self.stages:
            for stride in (first, *(1,) * (blocks - 1)):
                hidden, y = expansion * x.shape[-1], x
                if expansion > 1:
                    y = Norm(nn.relu6)(conv(hidden, (1, 1))(y))
                depthwise = conv(hidden, (3, 3), (stride, stride), padding=1, feature_group_count=hidden)
                y = Norm(nn.relu6)(depthwise(y))
                same = stride == 1 and x.shape[-1] == features
                y = Norm(None, RESIDUAL if same else 1.0)(conv(features, (1, 1))(y))
                x = x + y if same else y
        x = Norm(nn.relu6)(conv(1280, (1, 1))(x))
        return nn.Dense(1000, dtype=self.dtype)(x.mean((1, 2)))


class UNet(nn.Module):
    """Ronneberger et al. 2015, arXiv:1505.04597, padded; in 3-D Cicek et al. 2016, arXiv:1606.06650.

    `features` are those of the two convolutions of each resolution, from the finest to the coarsest.
    A transposed convolution keeps half the features of the U-Net, and all of those of the 3-D U-Net.
    """

    features: tuple[tuple[int, int], ...]
    classes: int
    rank: int
    dtype: jnp.dtype

    @nn.compact
    def __call__(self, x):
        window = (2,) * self.rank
        conv = functools.partial(nn.Conv, kernel_size=(3,) * self.rank, use_bias=False, dtype=self.dtype)
        skips = []
        for first, second in self.features[:-1]:
            x = Norm()(conv(second)(Norm()(conv(first)(x))))
            skips.append(x)
            x = nn.max_pool(x, window, window)
        first, second = self.features[-1]
        x = Norm()(conv(second)(Norm()(conv(first)(x))))
        for (_, features), skip in zip(self.features[-2::-1], skips[::-1], strict=True):
            up = features if self.rank == 2 else x.shape[-1]
            x = nn.ConvTranspose(up, window, window, dtype=self.dtype)(x)
            x = jnp.concatenate([x, skip], -1)
            x = Norm()(conv(features)(Norm()(conv(features)(x))))
        return conv(self.classes, kernel_size=(1,) * self.rank, use_bias=True)(x)


class WaveNet(nn.Module):
    """van den Oord et al. 2016, arXiv:1609.03499: gated blocks on a stack of dilated causal layers."""

    dtype: jnp.dtype
    dilations: tuple[int, ...] = tuple(2**k for k in range(10)) * 2

    @nn.compact
    def __call__(self, x):
        conv = functools.partial(nn.Conv, padding="CAUSAL", dtype=self.dtype)
        x, total = conv(64, (2,))(x), 0
        for dilation in self.dilations:
            filtered, gate = jnp.split(conv(128, (2,), kernel_dilation=dilation)(x), 2, -1)
            y = jnp.tanh(filtered) * nn.sigmoid(gate)
            total = total + conv(256, (1,))(y)
            x = x + conv(64, (1,))(y)
        return conv(256, (1,))(nn.relu(conv(256, (1,))(nn.relu(total))))


@dataclasses.dataclass(frozen=True)
class Model:
    """A model, the shape of its input, the number of classes, and what was made smaller."""

    make: Callable[..., nn.Module]
    shape: tuple[int, ...]
    classes: int
    scaled: str = ""
    per_element: bool = True  # a label for each element of the input, or one for each example


UNET = tuple((n, n) for n in (32, 64, 128, 256, 512))
UNET3D = (16, 32), (32, 64), (64, 128), (128, 256)

MODELS = {
    "resnet18": Model(ResNet18, (4, 224, 224, 3), 1000, per_element=False),
    "mobilenetv2": Model(MobileNetV2, (4, 224, 224, 3), 1000, per_element=False),
    "unet": Model(
        functools.partial(UNet, UNET, 2, 2), (2, 128, 128, 3), 2, "half the features, 128 instead of 572"
    ),
    "unet3d": Model(
        functools.partial(UNet, UNET3D, 3, 3), (1, 32, 32, 32, 1), 3, "half the features, 32 instead of 132"
    ),
    "wavenet": Model(WaveNet, (2, 4096, 1), 256),
}


def data(model: Model) -> tuple[np.ndarray, np.ndarray]:
    """Random input and labels: the time does not depend on the values."""
    rng = np.random.default_rng(0)
    shape = model.shape[:-1] if model.per_element else model.shape[:1]
    return rng.standard_normal(model.shape, np.float32), rng.integers(0, model.classes, shape)


def training_step(module: nn.Module) -> Callable:
    """Forward, backward and SGD; the loss, the new parameters and the gradients."""

    def loss(params, x, labels):
        logits = module.apply(params, x).astype(jnp.float32)
        return -jnp.take_along_axis(nn.log_softmax(logits), labels[..., None], -1).mean()

    def step(params, x, labels):
        value, grads = jax.value_and_grad(loss)(params, x, labels)
        return value, jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads), grads

    return step
