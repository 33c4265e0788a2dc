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
def torch_says(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let `torch.distributed` answer each question by its name with what a test gives."""

    def answer(**answers: object) -> None:
        for question, told in answers.items():
            monkeypatch.setattr(dist, question, lambda group=None, told=told: told)

    return answer


@pytest.fixture
def backends(torch_says: Callable[..., None]) -> Callable[[str], None]:
    """Let the process group have the backends that a test says, by device."""
    return lambda config: torch_says(get_backend_config=config)
