"""Named streams of the run's one seed, for everything that is random and is not privacy noise.

A teacher's initial weights, shuffling and augmentation come from its own stream f(seed, "teacher", t), so the other
teachers are the same bit for bit whatever happens to one shard. Privacy noise never comes from here.
"""

import hashlib


def stream(seed: int, name: str, index: int = 0) -> int:
    """A 63-bit seed for the stream ``name``, number ``index``.

    >>> stream(0, "teacher", 1) != stream(0, "teacher", 2)
    True
    """
    digest = hashlib.sha256(f"pate:{seed}:{name}:{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
