"""The models of `models.py` in PyTorch, and the time of their training step on a CPU.

`bench_models.py --torch` starts this file for each row, in a process of its own: two thread pools
in one process would disturb each other. It prints the milliseconds of each step as JSON.
"""

import argparse
import functools
import json
import time

import models
import torch
from torch import nn
from torch.nn import functional as F


def norm(features, rank=2):
    kind = nn.BatchNorm2d if rank == 2 else nn.BatchNorm3d
    return kind(features, track_running_stats=False)


class Block(nn.Module):
    def __init__(self, inputs, features, stride):
        super().__init__()
        conv = functools.partial(nn.Conv2d, bias=False)
        self.body = nn.Sequential(
            conv(inputs, features, 3, stride, 1),
            norm(features),
            nn.ReLU(True),
            conv(features, features, 3, 1, 1),
            norm(features),
        )
        self.skip = nn.Identity()
        if stride > 1 or inputs != features:
            self.skip = nn.Sequential(conv(inputs, features, 1, stride), norm(features))

    def forward(self, x):
        return F.relu(self.skip(x) + self.body(x))


def resnet18():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), norm(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for features, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        layers.append(Block(inputs, features, stride))
        inputs = features
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


class InvertedResidual(nn.Module):
    def __init__(self, inputs, features, expansion, stride):
        super().__init__()
        conv, hidden = functools.partial(nn.Conv2d, bias=False), expansion * inputs
        layers = [conv(inputs, hidden, 1), norm(hidden), nn.ReLU6(True)] if expansion > 1 else []
        layers += [conv(hidden, hidden, 3, stride, 1, groups=hidden), norm(hidden), nn.ReLU6(True)]
        self.body = nn.Sequential(*layers, conv(hidden, features, 1), norm(features))
        self.residual = stride == 1 and inputs == features

    def forward(self, x):
        return x + self.body(x) if self.residual else self.body(x)


def mobilenetv2():
    layers = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), norm(32), nn.ReLU6(True)]
    inputs = 32
    for expansion, features, blocks, first in models.MobileNetV2.stages:
        for stride in (first, *(1,) * (blocks - 1)):
            layers.append(InvertedResidual(inputs, features, expansion, stride))
            inputs = features
    layers += [nn.Conv2d(inputs, 1280, 1, bias=False), norm(1280), nn.ReLU6(True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class UNet(nn.Module):
    def __init__(self, features, classes, rank, inputs):
        super().__init__()
        conv, transpose = (nn.Conv2d, nn.ConvTranspose2d) if rank == 2 else (nn.Conv3d, nn.ConvTranspose3d)
        self.pool = nn.MaxPool2d(2) if rank == 2 else nn.MaxPool3d(2)

        def pair(inputs, first, second):
            layers = []
            for a, b in ((inputs, first), (first, second)):
                layers += [conv(a, b, 3, padding=1, bias=False), norm(b, rank), nn.ReLU(True)]
            return nn.Sequential(*layers)

        self.down, self.up, self.merge = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for first, second in features:
            self.down.append(pair(inputs, first, second))
            inputs = second
        for _, second in features[-2::-1]:
            up = second if rank == 2 else inputs
            self.up.append(transpose(inputs, up, 2, 2))
            self.merge.append(pair(up + second, second, second))
            inputs = second
        self.last = conv(inputs, classes, 1)

    def forward(self, x):
        skips = []
        for down in self.down[:-1]:
            skips.append(down(x))
            x = self.pool(skips[-1])
        x = self.down[-1](x)
        for up, merge, skip in zip(self.up, self.merge, skips[::-1], strict=True):
            x = merge(torch.cat([up(x), skip], 1))
        return self.last(x)


class Causal(nn.Conv1d):
    def forward(self, x):
        return super().forward(F.pad(x, (self.dilation[0] * (self.kernel_size[0] - 1), 0)))


class WaveNet(nn.Module):
    def __init__(self):
        super().__init__()
        dilations = models.WaveNet.dilations
        self.first = Causal(1, 64, 2)
        self.gated = nn.ModuleList(Causal(64, 128, 2, dilation=d) for d in dilations)
        self.skip = nn.ModuleList(nn.Conv1d(64, 256, 1) for _ in dilations)
        self.residual = nn.ModuleList(nn.Conv1d(64, 64, 1) for _ in dilations)
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(256, 256, 1), nn.ReLU(), nn.Conv1d(256, 256, 1))

    def forward(self, x):
        x, total = self.first(x), 0
        for gated, skip, residual in zip(self.gated, self.skip, self.residual, strict=True):
            filtered, gate = gated(x).chunk(2, 1)
            y = torch.tanh(filtered) * torch.sigmoid(gate)
            total = total + skip(y)
            x = x + residual(y)
        return self.head(total)


MODELS = {
    "resnet18": resnet18,
    "mobilenetv2": mobilenetv2,
    "unet": lambda: UNet(models.UNET, 2, 2, 3),
    "unet3d": lambda: UNet(models.UNET3D, 3, 3, 1),
    "wavenet": WaveNet,
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("dtype", choices=("f32", "bf16"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--min-time", type=float, default=5.0, help="seconds (%(default)s)")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    images, labels = map(torch.from_numpy, models.data(models.MODELS[args.model]))
    x, net = images.movedim(-1, 1).contiguous(), MODELS[args.model]().train()
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if x.ndim in formats:
        x, net = (a.to(memory_format=formats[x.ndim]) for a in (x, net))
    optimizer = torch.optim.SGD(net.parameters(), lr=models.LEARNING_RATE)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bf16"):
            logits = net(x)
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()

    step()
    times, stop = [], time.perf_counter() + args.min_time
    while len(times) < 5 or time.perf_counter() < stop:
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    parameters = sum(p.numel() for p in net.parameters())
    print(json.dumps({"torch": torch.__version__, "parameters": parameters, "ms": times}))


if __name__ == "__main__":
    main()
