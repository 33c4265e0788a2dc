from collections.abc import Iterator

import pytest

from gigl_loader.testing import one_rank


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of this process alone, for the loaders of one test module."""
    with one_rank(tmp_path_factory.mktemp("group")):
        yield
