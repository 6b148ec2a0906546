"""Shared fixtures: where optional test data lies, and an explicit, seeded noise source for tests alone."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

# A busy machine must not fail a property by being slow.
settings.register_profile("pate", deadline=None)
settings.load_profile("pate")


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder that PATE_TEST_DATA names (datasets/, votes/); tests that need it skip when it is unset."""
    root = os.environ.get("PATE_TEST_DATA")
    if not root:
        pytest.skip("PATE_TEST_DATA is unset: this test needs the MNIST, Adult and votes files it names")
    return Path(root).resolve()


@pytest.fixture
def noise_source() -> Callable[[int], bytes]:
    """A repeatable source of random bytes, in the place of os.urandom."""
    return np.random.default_rng(20180224).bytes
