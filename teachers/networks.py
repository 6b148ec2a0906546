"""The small networks that teachers, students and the baseline are made of.

Shards hold tens to hundreds of records, so the networks are small. None that trains on private records has batch
normalisation or dropout: the first would mix records (and DP-SGD needs per-example gradients), the second would draw
from torch's global generator.
Initial weights come from the seed alone and leave torch's global generator as it was, in threads too.
"""

import math

import numpy as np
import torch
from torch import nn

from data.errors import UserError
from teachers.backbones import backbone
from teachers.layers import convolution, linear
from teachers.scattering import wavelet_rows
from teachers.settings import DIMENSIONS, WIDTH

_HIDDEN = 128
_CHANNELS = (16, 32)
_GROUPS = 4


def build(model: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """A network from inputs (N, *shape) to logits (N, C).

    ``logistic``: one linear layer. ``mlp``: one hidden layer of 128. ``cnn``: two convolutions, each followed by
    2×2 max-pooling, for (channels, height, width) inputs of at least 4×4 (made for 8×8 to 32×32); the first is 3×3,
    and 7×7 with stride 2 from 16×16 on.
    For DP-SGD: ``tanh-mlp`` and ``tanh-cnn``, with bounded activations, which keep gradients short (Papernot et al.
    2020, "Tempered Sigmoid Activations for Deep Learning with Differential Privacy"; from 16×16 on the layers of its
    CNN: 8×8 and 4×4 at stride 2, pools at stride 1, 32 hidden units); ``gn-cnn``, the cnn with group normalisation,
    which is of each example alone; ``scattering``, a linear layer on fixed wavelet features of images of at least 8×8,
    each example normalised by itself.
    For students alone: ``convnet``, a linear layer on :func:`teachers.backbones.backbone`, whose batch normalisation
    mixes records, which are public there.

    Raises UserError for an unknown name, and for the image networks on anything but images.
    """
    if not classes > 1:
        raise UserError(f"classes = {classes}: must be at least 2")
    generator = torch.Generator().manual_seed(seed)
    width = math.prod(shape)
    if model == "logistic":
        layers = [nn.Flatten(), linear(width, classes, generator)]
    elif model in ("mlp", "tanh-mlp"):
        layers = [
            nn.Flatten(),
            linear(width, _HIDDEN, generator),
            _activation(model),
            linear(_HIDDEN, classes, generator),
        ]
    elif model in ("cnn", "tanh-cnn", "gn-cnn"):
        layers = _convolutional(model, shape, classes, generator)
    elif model == "scattering":
        rows, columns = wavelet_rows(shape)
        layers = [*rows, linear(columns, classes, generator, bias=False)]
    elif model == "convnet":
        layers = [backbone(shape, WIDTH, DIMENSIONS, seed), linear(DIMENSIONS, classes, generator)]
    else:
        raise UserError(
            f"model = {model!r}: must be logistic, mlp, cnn, convnet, tanh-mlp, tanh-cnn, gn-cnn or scattering"
        )
    return nn.Sequential(*layers)


def as_input(features: np.ndarray) -> torch.Tensor:
    """Features as float32, in C order: uint8 pixels are divided by 255, anything else keeps its values.

    Order matters to the last bit: torch chooses a convolution's kernel by its input's strides.
    """
    # `copy` and not ascontiguousarray, which keeps odd strides of dimensions of length 1.
    return scaled(torch.from_numpy(features.copy(order="C")))


def scaled(features: torch.Tensor) -> torch.Tensor:
    """The same of a tensor, where it lies."""
    return features.to(torch.float32) / 255.0 if features.dtype == torch.uint8 else features.to(torch.float32)


def _activation(model: str) -> nn.Module:
    return nn.Tanh() if model.startswith("tanh-") else nn.ReLU()


def _convolutional(model: str, shape: tuple[int, ...], classes: int, generator: torch.Generator) -> list[nn.Module]:
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise UserError(f"model = {model!r}: is for images of at least 4×4 pixels; tables take logistic or mlp")
    channels, *size = shape
    first, second = _CHANNELS
    if model == "tanh-cnn" and min(size) >= 16:
        return _tempered(channels, size, classes, generator)
    # Wide strides on larger images: on MNIST's shards of 240 faster and better than 3×3 or 5×5 at stride 1.
    kernel, stride = (7, 2) if min(size) >= 16 else (3, 1)
    height, width = (-(-pixels // stride) // 4 for pixels in size)
    return [
        convolution(channels, first, kernel, stride, generator),
        *([nn.GroupNorm(_GROUPS, first)] if model == "gn-cnn" else []),
        nn.MaxPool2d(2),
        _activation(model),
        convolution(first, second, 3, 1, generator),
        *([nn.GroupNorm(_GROUPS, second)] if model == "gn-cnn" else []),
        nn.MaxPool2d(2),
        _activation(model),
        nn.Flatten(),
        linear(second * height * width, classes, generator),
    ]


def _tempered(channels: int, size: list[int], classes: int, generator: torch.Generator) -> list[nn.Module]:
    first, second = _CHANNELS
    hidden = 32
    # 28 pixels: 14 after the first convolution, 13 pooled, 5 after the second, 4 pooled.
    height, width = (((pixels - 2) // 2 + 1 - 1 - 4) // 2 + 1 - 1 for pixels in size)
    return [
        convolution(channels, first, 8, 2, generator, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        convolution(first, second, 4, 2, generator, padding=0),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        linear(second * height * width, hidden, generator),
        nn.Tanh(),
        linear(hidden, classes, generator),
    ]
