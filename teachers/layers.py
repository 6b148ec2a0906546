"""Layers whose initial weights come from a generator of the caller, and torch's global one is left as it was."""

import math

import torch
from torch import nn


def linear(inputs: int, outputs: int, generator: torch.Generator, *, bias: bool = True) -> nn.Module:
    """A linear layer (inputs, outputs) with weights of the generator."""
    return _initialised(nn.Linear(inputs, outputs, bias=bias, device="meta"), inputs, generator)


def convolution(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int,
    generator: torch.Generator,
    padding: int | None = None,
    *,
    bias: bool = True,
) -> nn.Module:
    """A convolution with weights of the generator; without ``padding``, as much as keeps the size at stride 1."""
    padding = kernel // 2 if padding is None else padding
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=bias, device="meta")
    return _initialised(layer, kernel * kernel * inputs, generator)


def _initialised(layer: nn.Module, fan_in: int, generator: torch.Generator) -> nn.Module:
    # Uniform within ±1/√fan_in, torch's own default law; its initialisers would draw from the global generator. The
    # layer comes without memory: torch's skip_init would give it some, but loads sympy to do so, for 0.3 s.
    bound = 1.0 / math.sqrt(max(fan_in, 1))
    for name, shape in [(name, parameter.shape) for name, parameter in layer.named_parameters()]:
        weights = torch.empty(shape).uniform_(-bound, bound, generator=generator)
        setattr(layer, name, nn.Parameter(weights))
    return layer
