"""Units, and the two sources of chance of DP-SGD: who enters a step, and the noise. Both from the operating system.

Neighbouring datasets: one unit added or removed. Everything here treats a unit by itself, so neither moves another.
"""

from collections.abc import Callable

import numpy as np
import torch

from data.examples import PrivateRecords

Entropy = Callable[[int], bytes]

_WORDS = 624
_STATE_AT = 24
_STATE_BYTES = 5056


def one_per_unit(records: PrivateRecords) -> PrivateRecords:
    """At most one record of each unit: the one whose keyed content hash is smallest, whatever other units hold."""
    order = np.lexsort((records.content, records.units))
    _, first = np.unique(records.units[order], return_index=True)
    rows = order[first]
    return PrivateRecords(records.features[rows], records.labels[rows], records.units[rows], records.content[rows])


def system_generator(entropy: Entropy) -> torch.Generator:
    """A torch generator whose whole state, 19937 bits, is filled from ``entropy`` (``os.urandom``).

    torch's ``manual_seed`` keeps 32 bits of a seed on the CPU, and an attacker who holds the released weights could
    try all 2^32 of them. Mersenne Twister is still no cryptographic generator: the statement says so.

    Raises:
        RuntimeError: torch lays the state out in another way than the one known here.
    """
    generator = torch.Generator()
    state = generator.manual_seed(0).get_state()
    if state.numel() != _STATE_BYTES:
        raise RuntimeError("this version of torch keeps its generator's state in another layout")
    words = np.frombuffer(entropy(4 * _WORDS), dtype="<u4").astype("<u8")
    # After manual_seed nothing is left of the block, so the first draw stirs all of these words.
    state[_STATE_AT : _STATE_AT + 8 * _WORDS] = torch.from_numpy(np.frombuffer(words.tobytes(), dtype=np.uint8).copy())
    generator.set_state(state)
    return generator


def poisson_sample(units: int, rate: float, generator: torch.Generator) -> torch.Tensor:
    """Rows of a Poisson sample: each of ``units`` rows enters by itself with probability ``rate``; it may be empty.

    Uniforms of 53 bits: with the 24 bits of Opacus' own sampler the true probability is the next multiple of 2^-24
    above ``rate``, larger than the one accounted.
    """
    return torch.nonzero(torch.rand(units, dtype=torch.float64, generator=generator) < rate).flatten()
