"""Private records made up for the baseline's tests, and an explicit noise source where a test must repeat a draw."""

from collections.abc import Callable

import numpy as np
import pytest

from data.examples import PrivateRecords
from data.identity import unit_ids


@pytest.fixture
def records() -> Callable[..., PrivateRecords]:
    """``records(n)``: n records of 5 columns and 3 classes, one unit each unless ``units`` names them."""

    def made(n: int, units: list[bytes] | None = None, scale: float = 1.0) -> PrivateRecords:
        generator = np.random.default_rng(n)
        features = (scale * generator.normal(size=(n, 5))).astype(np.float32)
        labels = generator.integers(0, 3, n).astype(np.int32)
        content = unit_ids([row.tobytes() + bytes([label]) for row, label in zip(features, labels, strict=True)], 0)
        return PrivateRecords(features, labels, content if units is None else unit_ids(units, 0), content)

    return made
