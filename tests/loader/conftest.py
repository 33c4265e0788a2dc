from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist

from gigl_loader.testing import one_rank


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of this process alone, for the loaders of one test module."""
    with one_rank(tmp_path_factory.mktemp("group")):
        yield


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the process group have the backends that a test says, by device."""

    def set_to(config: str) -> None:
        monkeypatch.setattr(dist, "get_backend_config", lambda group=None: config)

    return set_to
