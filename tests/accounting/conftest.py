"""A cache of certified numbers that belongs to one test session."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
