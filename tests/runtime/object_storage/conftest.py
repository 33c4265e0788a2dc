import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.runtime.object_storage.object_server import BUCKET, SECRET, Proxy, proxy_to, s3_server

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    assert find_spec("moto"), "the test extra installs moto"
    with s3_server() as port:
        yield port


@dataclass
class Storage:
    """A new folder of the bucket, reached through a proxy."""

    url: str
    proxy: Proxy


@pytest.fixture
def storage(s3_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    with proxy_to(s3_port) as (proxy, port):
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "tests",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "GIGL_LOADER_CACHE_DIR": str(tmp_path / "cache"),
        }.items():
            monkeypatch.setenv(name, value)
        # a proxy of the machine's own would be asked for this address, too
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield Storage(f"s3://{BUCKET}/folder{next(_NUMBERS)}", proxy)
