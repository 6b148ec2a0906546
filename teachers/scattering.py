"""Fixed wavelet features: what a linear layer needs to see strokes and edges without learning from private pixels.

The first order of a scattering transform (Bruna and Mallat 2013, "Invariant Scattering Convolution Networks"): moduli
of Morlet wavelet responses at J scales and L angles, low-pass filtered and subsampled by 2^J, with the smoothed image.
Nothing in it is learned, so it costs no privacy. With few private examples or strong noise a linear layer on such
features beats a network that must learn its own (Tramèr and Boneh 2021, "Differentially Private Learning Needs Better
Features (or Much More Data)").
"""

import math

import torch
from torch import nn

from data.errors import UserError

ANGLES = 8
INTERCEPT = 0.3
_SLANT = 0.5


class Scattering(nn.Module):
    """Images (N, channels, H, W) to (N, channels · maps, ceil(H / 2^J), ceil(W / 2^J)).

    maps = 1 + J·L: 9 for J = 1, 17 for J = 2. H and W must exceed the longest filter's half: 3 pixels for J = 1, 7
    for J = 2. Scale s is computed at every 2^s-th pixel, as it holds no finer detail. The filters are constants: none
    is in the state, none is trained.
    """

    def __init__(self, scales: int) -> None:
        super().__init__()
        self.scales = scales
        for scale in range(scales):
            self.register_buffer(f"wavelets{scale}", _wavelets(scale), persistent=False)
            self.register_buffer(f"smoothing{scale}", _gaussian(0.8 * 2 ** (scales - 1 - scale)), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        maps = [self._smooth(0, images)]
        for scale in range(self.scales):
            maps.append(self._smooth(scale, _modulus(images, self._filters("wavelets", scale), 2**scale)))
        return torch.cat(maps, dim=1)

    def _filters(self, kind: str, scale: int) -> torch.Tensor:
        return self.get_buffer(f"{kind}{scale}")

    def _smooth(self, scale: int, maps: torch.Tensor) -> torch.Tensor:
        return _each_map(maps, self._filters("smoothing", scale), 2 ** (self.scales - scale)).squeeze(2)


class UnitRows(nn.Module):
    """Rows (N, D) scaled to length 1 (a zero row stays zero), then a constant coordinate: (N, D + 1).

    Clipping bounds the gradient of a linear layer by the length of its input, so no example should be longer than
    another, and the intercept, the weight of the constant, should not take half of the bound.
    """

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.pad(nn.functional.normalize(rows, dim=1), (0, 1), value=INTERCEPT)


def wavelet_rows(shape: tuple[int, ...]) -> tuple[list[nn.Module], int]:
    """The fixed layers that turn images (N, *shape) into rows, and the rows' width D.

    Scattering (J = 1 below 16×16, else 2), each map standardised over its own image, then :class:`UnitRows`.
    Raises UserError for anything but images of at least 8×8.
    """
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise UserError("model = 'scattering': is for images of at least 8×8 pixels; tables take logistic or tanh-mlp")
    features = Scattering(1 if min(shape[1:]) < 16 else 2)
    with torch.no_grad():
        maps = features(torch.zeros(1, *shape)).shape
    standardised = nn.GroupNorm(maps[1], maps[1], affine=False)
    return [features, standardised, nn.Flatten(), UnitRows()], math.prod(maps[1:]) + 1


def _each_map(maps: torch.Tensor, filters: torch.Tensor, stride: int) -> torch.Tensor:
    """(N, M, H, W) maps, each through the same F filters, mirrored at the border: (N, M, F, H / stride, W / stride)."""
    count, channels, height, width = maps.shape
    flat = maps.reshape(count * channels, 1, height, width)
    padded = nn.functional.pad(flat, (filters.shape[-1] // 2,) * 4, mode="reflect")
    return nn.functional.conv2d(padded, filters, stride=stride).unflatten(0, (count, channels))


def _modulus(maps: torch.Tensor, wavelets: torch.Tensor, stride: int) -> torch.Tensor:
    """(N, M, H, W) maps to (N, M·L, …) moduli of complex responses; real and imaginary filters alternate."""
    responses = _each_map(maps, wavelets, stride).unflatten(2, (-1, 2))
    return torch.linalg.vector_norm(responses, dim=3).flatten(1, 2)


def _grid(radius: int) -> tuple[torch.Tensor, torch.Tensor]:
    axis = torch.arange(-radius, radius + 1, dtype=torch.float32)
    rows, columns = torch.meshgrid(axis, axis, indexing="ij")
    return columns, rows


def _gaussian(sigma: float) -> torch.Tensor:
    x, y = _grid(int(3 * sigma) + 1)
    bell = torch.exp(-(x**2 + y**2) / (2 * sigma**2))
    return (bell / bell.sum())[None, None]


def _wavelets(scale: int) -> torch.Tensor:
    """Morlet wavelets of one scale, (2·L, 1, size, size): an oscillation under an elongated bell, made zero-mean."""
    sigma, frequency = 0.8 * 2**scale, 3 * math.pi / 4 / 2**scale
    x, y = _grid(int(4.5 * sigma))
    filters = []
    for angle in range(ANGLES):
        cos, sin = math.cos(math.pi * angle / ANGLES), math.sin(math.pi * angle / ANGLES)
        along, across = cos * x + sin * y, cos * y - sin * x
        bell = torch.exp(-(along**2 + (_SLANT * across) ** 2) / (2 * sigma**2))
        real, imaginary = bell * torch.cos(frequency * along), bell * torch.sin(frequency * along)
        scale_down = _SLANT / (2 * math.pi * sigma**2)
        filters += [(real - real.sum() / bell.sum() * bell) * scale_down, imaginary * scale_down]
    return torch.stack(filters)[:, None]
