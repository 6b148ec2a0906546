"""Several moved copies of a unit's image in one step (augmentation multiplicity).

De et al. 2022, "Unlocking High-Accuracy Differentially Private Image Classification through Scale": the
gradient of a unit is the mean over K augmented copies, and that mean is clipped.

Why it costs no privacy: a unit still adds one gradient of length at most C to a step's sum, whatever K is, and it moves
nobody else's. The second half needs care. The copies are drawn from the run's seed, which is no secret, so the sum is a
fixed function of the sampled units and its sensitivity must hold for the draws as they are: a unit's moves are a
function of (seed, unit, step, copy) alone. Drawn one after another for the rows of a sample, they would all be others
once a unit joins, and so would be all gradients.
"""

import numpy as np
import torch
from torch import nn

from data.identity import unit_ids
from data.streams import stream

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))


def keys_of(units: np.ndarray, seed: int) -> np.ndarray:
    """A 64-bit key (N,) of each unit, from the run's stream "augmentation" and the unit's id alone."""
    digests = unit_ids(units.tolist(), stream(seed, "augmentation"))
    return np.array([int(digest[:16], 16) for digest in digests.tolist()], dtype=np.uint64)


def moves_of(keys: np.ndarray, step: int, copies: int, shift: int) -> torch.Tensor:
    """Moves (2, B, copies) int64 in [0, 2 · shift], down and right, of B units in a step; ``shift`` is no move.

    A counter-based generator: number ``step`` · copies + copy of the sequence SplitMix64 that starts at the unit's key
    (Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators").
    """
    counter = np.arange(step * copies + 1, (step + 1) * copies + 1, dtype=np.uint64)
    mixed = keys[:, None] + counter * _STEP
    for bits, factor in _MIX:
        mixed = (mixed ^ (mixed >> np.uint64(bits))) * factor
    mixed ^= mixed >> np.uint64(31)
    width = np.uint64(2 * shift + 1)
    return torch.from_numpy(np.stack([mixed % width, mixed // width % width]).astype(np.int64))


def moved(images: torch.Tensor, moves: torch.Tensor, shift: int) -> torch.Tensor:
    """Images (B, channels, height, width) in their moves (2, B, K): (B, K, channels, height, width).

    What is moved in repeats the border.
    """
    count, _, height, width = images.shape
    padded = nn.functional.pad(images, [shift] * 4, mode="replicate")
    # (B, channels, moves, moves, height, width), a view: each image in all its places.
    places = padded.unfold(2, height, 1).unfold(3, width, 1)
    return places[torch.arange(count)[:, None], :, moves[0], moves[1]]
