import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("gigl_loader", deadline=None, print_blob=True)
settings.load_profile("gigl_loader")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch  # here: the process that only hands tests to others needs none of it

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
    gc.collect()
    gc.freeze()  # the garbage collector need not look at modules and tests again and again
    if any(item.get_closest_marker("multiprocess") for item in session.items):
        start_fork_server("pytest")


@pytest.fixture(scope="session", autouse=True)
def _fast_supervisors() -> Iterator[None]:
    """Start the supervisors of sampling workers from a process that has imported all they need."""
    from gigl_loader.testing._forked import fast_supervisors

    with fast_supervisors():
        yield


@pytest.fixture(scope="session", autouse=True)
def _certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """With GIGL_LOADER_TEST_TLS=1, let all processes of all tests speak TLS with certificates."""
    if os.environ.get("GIGL_LOADER_TEST_TLS") != "1":
        yield
        return
    from gigl_loader.transport import certs
    from gigl_loader.transport.security import TLS_DIR_VARIABLE

    folder = certs.make_folder(tmp_path_factory.mktemp("certificates"), ["127.0.0.1", "localhost"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TLS_DIR_VARIABLE, str(folder))
        yield
