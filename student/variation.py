"""Slightly shifted, turned and scaled copies of images: changes that leave a label as it is.

Nothing is flipped, and nothing moves by more than about a tenth of the image, so that a 6 stays a 6. Released here:
nothing; the images are public.
"""

import numpy as np
import torch

TURN = 10.0
SHIFT = 1 / 14
SCALE = 0.1
_CHUNK = 8_192


def varied(features: np.ndarray, copies: int, seed: int) -> np.ndarray:
    """(copies·N, channels, height, width) uint8: the N images themselves, then copies − 1 random variations of each.

    Each is turned by up to ±TURN degrees, shifted by up to ±SHIFT of its sides and scaled by 1 ± SCALE, uniformly.
    """
    generator = torch.Generator().manual_seed(seed)
    parts = [features]
    for _ in range(copies - 1):
        draws = torch.rand(len(features), 4, generator=generator) * 2 - 1
        scale = 1 + SCALE * draws[:, 3]
        parts.append(_moved(features, TURN * draws[:, 0], SHIFT * draws[:, 1], SHIFT * draws[:, 2], scale))
    return np.concatenate(parts)


def fixed_variations(features: np.ndarray) -> list[np.ndarray]:
    """Seven arrays like ``features``: the images, shifted four ways by SHIFT of a side, turned both ways by TURN."""
    moves = [(0, SHIFT, 0), (0, -SHIFT, 0), (0, 0, SHIFT), (0, 0, -SHIFT), (TURN, 0, 0), (-TURN, 0, 0)]
    one = torch.ones(len(features))
    return [features] + [_moved(features, turn * one, x * one, y * one, one) for turn, x, y in moves]


def _moved(
    features: np.ndarray, turn: torch.Tensor, x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor
) -> np.ndarray:
    angle = torch.deg2rad(turn)
    cos, sin = torch.cos(angle) / scale, torch.sin(angle) / scale
    # affine_grid's coordinates run from -1 to 1: a shift of s of a side is 2s.
    rows = [torch.stack([cos, -sin, 2 * x], 1), torch.stack([sin, cos, 2 * y], 1)]
    theta = torch.stack(rows, 1)
    out = np.empty_like(features)
    for start in range(0, len(features), _CHUNK):
        part = slice(start, start + _CHUNK)
        images = torch.from_numpy(features[part].astype(np.float32))
        grid = torch.nn.functional.affine_grid(theta[part], list(images.shape), align_corners=False)
        moved = torch.nn.functional.grid_sample(images, grid, align_corners=False)
        out[part] = moved.round().clamp(0, 255).to(torch.uint8).numpy()
    return out
