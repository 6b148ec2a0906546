"""Random affine and elastic views of images: what a learner should see as the same thing.

Neighbouring datasets differ in one private unit; the images here are public and nothing depends on private data. The
elastic part follows Simard, Steinkraus and Platt (2003), "Best practices for convolutional neural networks applied to
visual document analysis", with a coarse grid of displacements that is interpolated instead of a smoothed field.
"""

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

_GRID = 7


@dataclass(frozen=True)
class Strength:
    """The most that an image is moved by, uniformly either way (``elastic``: normally); 0 leaves it out.

    ``rotation`` in degrees; ``shift`` as a share of a side; ``scale`` and ``shear``: each side by exp(±scale), the
    first axis by ± shear of the second; ``elastic``: the standard deviation of moves on a 7×7 grid, of half a side.
    """

    rotation: float = 10.0
    shift: float = 0.07
    scale: float = 0.12
    shear: float = 0.15
    elastic: float = 0.06


def warped(images: torch.Tensor, generator: torch.Generator, strength: Strength = Strength()) -> torch.Tensor:
    """Images (N, channels, height, width), floating point, each changed by draws of its own; the same shape and type.

    Deterministic given the state of ``generator``, a CPU one. What comes in from outside repeats the border.
    """
    count, _, height, width = images.shape
    draws = torch.rand(6, count, generator=generator) * 2 - 1
    angle = draws[0] * math.radians(strength.rotation)
    cos, sin, ratio = angle.cos(), angle.sin(), height / width
    across, down = torch.exp(draws[1] * strength.scale), torch.exp(draws[2] * strength.scale)
    # affine_grid's coordinates run from -1 to 1 over a side, whatever its pixels: a turn of another shape is no turn.
    shear, shift = draws[3] * strength.shear, 2 * strength.shift * draws[4:]
    first = torch.stack([cos * across, (shear - sin * down) * ratio, shift[0]], 1)
    second = torch.stack([sin * across / ratio, cos * down, shift[1]], 1)
    theta = torch.stack([first, second], 1).to(images.device, images.dtype)
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    if strength.elastic > 0:
        moves = torch.randn(count, 2, _GRID, _GRID, generator=generator).mul_(strength.elastic)
        moves = moves.to(images.device, images.dtype)
        smooth = functional.interpolate(moves, (height, width), mode="bicubic", align_corners=True)
        grid = grid + smooth.permute(0, 2, 3, 1)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
