import pytest
import torch
from hypothesis import settings

settings.register_profile("gigl_loader", deadline=None, print_blob=True)
settings.load_profile("gigl_loader")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from gigl_loader import _glt

    here = {
        "gpu": torch.cuda.is_available(),
        "glt": _glt.available,
        "native": _glt.native_available,
    }
    for item in items:
        for marker, available in here.items():
            if item.get_closest_marker(marker) and not available:
                item.add_marker(pytest.mark.skip(reason=f"no {marker} on this machine"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let the fork server import while the first tests run, and be there before tests count."""
    from gigl_loader.testing._forked import start_fork_server

    if session.config.option.collectonly:
        return
    if any(item.get_closest_marker("multiprocess") for item in session.items):
        start_fork_server("pytest")
