"""The convolutional network that an encoder is learned with, from public images alone (:mod:`student.pretraining`).

Its batch normalisation mixes the records of a batch in training, so it never trains on private records as it is: where
teachers start from it, each normalisation is folded into the layer before it and what is left mixes nothing.
"""

import math

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from data.errors import UserError
from teachers.layers import convolution, linear

# Places a side that the last convolution sees of large images: the linear layer has a weight for each.
_MOST_PLACES = 16


def backbone(shape: tuple[int, ...], width: int, dimensions: int, seed: int) -> nn.Sequential:
    """Images (N, channels, height, width), at least 4×4, to (N, dimensions), all of them at least 0.

    Convolutions to w, 2w and 4w channels (w = ``width``), each with batch normalisation and ReLU; the first is 3×3, and
    5×5 with stride 2 from 16×16 on; pooling before the last, to at most 16×16 places; then a linear layer of all
    places. Nothing is averaged over places: where a stroke lies tells digits apart. Raises UserError for anything but
    images.
    """
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise UserError("pretraining.method or student.model: a convnet is for images of at least 4×4 pixels")
    generator = torch.Generator().manual_seed(seed)
    channels, *size = shape
    kernel, stride = (5, 2) if min(size) >= 16 else (3, 1)
    size = [-(-pixels // stride) for pixels in size]
    pool = 2
    while max(size) // pool > _MOST_PLACES and min(size) // (2 * pool) > 0:
        pool *= 2
    places = math.prod(pixels // pool for pixels in size)
    return nn.Sequential(
        convolution(channels, width, kernel, stride, generator, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        convolution(width, 2 * width, 3, 1, generator, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(pool),
        convolution(2 * width, 4 * width, 3, 1, generator, bias=False),
        nn.BatchNorm2d(4 * width),
        nn.ReLU(),
        nn.Flatten(),
        linear(4 * width * places, dimensions, generator, bias=False),
        nn.BatchNorm1d(dimensions),
        nn.ReLU(),
    )


def folded(network: nn.Sequential) -> nn.Sequential:
    """A copy of a backbone in which every normalisation, at its running moments, is part of the layer before it.

    γ(Wx − μ)/√(σ² + ε) + β is a layer with weights γW/√(σ² + ε) and bias β − γμ/√(σ² + ε): in eval mode the same
    function, up to rounding, and in training no function of other records.
    """
    network = network.eval()
    layers: list[nn.Module] = []
    for layer in network:
        if isinstance(layer, nn.BatchNorm2d) and isinstance(layers[-1], nn.Conv2d):
            layers[-1] = fuse_conv_bn_eval(layers[-1], layer)
        elif isinstance(layer, nn.BatchNorm1d) and isinstance(layers[-1], nn.Linear):
            layers[-1] = fuse_linear_bn_eval(layers[-1], layer)
        else:
            layers.append(layer)
    # A bias that the layer lacked comes from moments, which need no gradient; as a bias it does.
    return nn.Sequential(*layers).requires_grad_(True)
