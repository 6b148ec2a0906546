"""The small networks that teachers, students and the baseline are made of.

Shards hold tens to hundreds of records, so the networks are small. None has batch normalisation or dropout: the
first would mix records (and DP-SGD needs per-example gradients), the second would draw from torch's global generator.
Initial weights come from the seed alone and leave torch's global generator as it was, in threads too.
"""

import math

import numpy as np
import torch
from torch import nn

from data.errors import UserError

_HIDDEN = 128
_CHANNELS = (16, 32)


def build(model: str, shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    """A network from inputs (N, *shape) to logits (N, C).

    ``logistic``: one linear layer. ``mlp``: one hidden layer of 128. ``cnn``: two 3×3 convolutions, each followed by
    2×2 max-pooling, for (channels, height, width) inputs of at least 4×4 (made for 8×8 to 32×32).

    Raises UserError for an unknown name, and for ``cnn`` on anything but images.
    """
    if not classes > 1:
        raise UserError(f"classes = {classes}: must be at least 2")
    generator = torch.Generator().manual_seed(seed)
    width = math.prod(shape)
    if model == "logistic":
        layers = [nn.Flatten(), _linear(width, classes, generator)]
    elif model == "mlp":
        layers = [
            nn.Flatten(),
            _linear(width, _HIDDEN, generator),
            nn.ReLU(),
            _linear(_HIDDEN, classes, generator),
        ]
    elif model == "cnn":
        layers = _convolutional(shape, classes, generator)
    else:
        raise UserError(f"model = {model!r}: must be logistic, mlp or cnn")
    return nn.Sequential(*layers)


def as_input(features: np.ndarray) -> torch.Tensor:
    """Features as float32: uint8 pixels are divided by 255, anything else keeps its values."""
    if features.dtype == np.uint8:
        return torch.from_numpy(np.array(features)).to(torch.float32) / 255.0
    return torch.from_numpy(np.array(features, dtype=np.float32))


def _convolutional(shape: tuple[int, ...], classes: int, generator: torch.Generator) -> list[nn.Module]:
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise UserError("model = 'cnn': is for images of at least 4×4 pixels; tables take logistic, mlp or sklearn:…")
    channels, height, width = shape
    first, second = _CHANNELS
    return [
        _convolution(channels, first, generator),
        nn.ReLU(),
        nn.MaxPool2d(2),
        _convolution(first, second, generator),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        _linear(second * (height // 4) * (width // 4), classes, generator),
    ]


def _linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Module:
    return _initialised(nn.utils.skip_init(nn.Linear, inputs, outputs), inputs, generator)


def _convolution(inputs: int, outputs: int, generator: torch.Generator) -> nn.Module:
    return _initialised(nn.utils.skip_init(nn.Conv2d, inputs, outputs, 3, padding=1), 9 * inputs, generator)


def _initialised(layer: nn.Module, fan_in: int, generator: torch.Generator) -> nn.Module:
    # Uniform within ±1/√fan_in, torch's own default law; its initialisers would draw from the global generator.
    bound = 1.0 / math.sqrt(max(fan_in, 1))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return layer
