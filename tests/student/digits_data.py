"""The public benchmark that the student's tests share: digits, split as in the demo, with noisy labels."""

import numpy as np

from data import images
from data.examples import Examples
from data.public import load_public, load_test
from data.settings import DataSettings

SETTINGS = DataSettings(name="digits", source="digits", private=1197, public=400, test=200)


def parts(seed: int) -> tuple[Examples, np.ndarray, Examples]:
    """The public part, its true labels (for the tests alone), and the labelled test part."""
    public, test = load_public(SETTINGS, seed), load_test(SETTINGS, seed)
    assert test is not None
    return public, images.labels(SETTINGS, "all", public.ids), test


def noisy(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Labels of which about ``share`` are replaced by a random class, as noise on votes would."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(len(labels)) < share, rng.integers(0, 10, len(labels)), labels)
