"""Training images moved, turned and scaled a little, anew in each epoch, so that few records teach more.

Every image is changed by itself, by draws of its teacher's own generator.
"""

from dataclasses import dataclass

import torch
from torch import nn

from teachers.settings import TeacherSettings


@dataclass(frozen=True)
class Augmentation:
    """The most that an image is changed by: ``shift`` pixels each way, ``rotation`` degrees, ``scaling`` of its size.

    Of each up to so much either way, uniformly. What comes in from outside repeats the border.
    """

    shift: int = 0
    rotation: float = 0.0
    scaling: float = 0.0

    def changes(self, inputs: torch.Tensor) -> bool:
        """Whether these inputs are changed at all: images (N, channels, height, width) are, tables never."""
        return inputs.ndim == 4 and (self.shift > 0 or self.rotation > 0 or self.scaling > 0)

    def __call__(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Images of the same shape. Shifts alone are of whole pixels; with others images are interpolated."""
        if self.rotation > 0 or self.scaling > 0:
            return _resampled(images, self, generator)
        return _shifted(images, self.shift, generator)


def augmentation_of(settings: TeacherSettings) -> Augmentation:
    """What the settings say."""
    return Augmentation(settings.shift, settings.rotation, settings.scaling)


def _shifted(images: torch.Tensor, shift: int, generator: torch.Generator) -> torch.Tensor:
    count, _, height, width = images.shape
    moves = torch.randint(0, 2 * shift + 1, (2, count), generator=generator).to(images.device)
    padded = nn.functional.pad(images, [shift] * 4, mode="replicate")
    # (N, channels, moves, moves, height, width), a view: each image in all its places.
    places = padded.unfold(2, height, 1).unfold(3, width, 1)
    return places[torch.arange(count, device=images.device), :, moves[0], moves[1]]


def _resampled(images: torch.Tensor, most: Augmentation, generator: torch.Generator) -> torch.Tensor:
    count, _, height, width = images.shape
    draws = torch.rand(5, count, generator=generator) * 2 - 1
    angle = torch.deg2rad(most.rotation * draws[0])
    across, down = (1 + most.scaling * draws[1]), (1 + most.scaling * draws[2])
    # affine_grid's coordinates run from -1 to 1 over a side, whatever its pixels: a turn of another shape is no turn.
    x, y = most.shift * 2 / width * draws[3], most.shift * 2 / height * draws[4]
    cos, sin, ratio = angle.cos(), angle.sin(), height / width
    first = torch.stack([cos / across, -sin / across * ratio, x], 1)
    second = torch.stack([sin / down / ratio, cos / down, y], 1)
    where = torch.stack([first, second], 1).to(images.device)
    grid = nn.functional.affine_grid(where, list(images.shape), align_corners=False)
    return nn.functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
