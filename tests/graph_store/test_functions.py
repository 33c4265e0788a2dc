"""Functions that `request_server` runs on storage servers with leave, over a connection."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from gigl_loader.errors import ConfigError, RemoteError
from gigl_loader.graph_store import DistServer, async_request_server, request_server
from gigl_loader.graph_store.client import compute_process
from tests.graph_store.in_process import joined, storage

HERE = "tests.graph_store.test_functions"


def tell(*args: Any, **kwargs: Any) -> Any:
    return {"args": list(args), **kwargs}


def doubled(rows: torch.Tensor, *, times: int = 2) -> torch.Tensor:
    return rows * times


def pair(rows: torch.Tensor, text: str) -> tuple[str, torch.Tensor, None]:
    return text, rows + 1, None


def nothing() -> None:
    pass


def fail(what: str) -> None:
    raise KeyError(what)


def leak() -> object:
    return object()


@pytest.fixture
def _server(take_part: Callable[[Any], None]) -> Iterator[None]:
    allowed = [f"{HERE}.{name}" for name in ("tell", "doubled", "pair", "fail", "leak", "absent")]
    with (
        storage(functions=[*allowed, f"{HERE}.torch"]) as (endpoint,),
        joined(endpoint.address) as cluster,
    ):
        take_part(cluster)
        yield


@pytest.mark.usefixtures("_server")
def test_a_server_runs_functions_that_it_has_leave_for() -> None:
    rows = torch.arange(6, dtype=torch.int16).view(2, 3)
    assert torch.equal(request_server(0, doubled, rows), rows * 2)
    assert torch.equal(async_request_server(0, doubled, rows, times=3).wait(), rows * 3)
    text, more, none = request_server(0, pair, rows, text="b")
    assert (text, none) == ("b", None)
    assert torch.equal(more, rows + 1)
    nested = request_server(0, tell, [rows, {"b": (rows,)}], c={7: rows})
    assert torch.equal(nested["args"][0][0], rows)
    assert torch.equal(nested["args"][0][1]["b"][0], rows)
    assert torch.equal(nested["c"][7], rows)
    many = list(range(12))
    assert request_server(0, tell, *many, a=None, b={"c": [1.5, b"x"]}) == {
        "args": many,
        "a": None,
        "b": {"c": [1.5, b"x"]},
    }
    assert isinstance(request_server(0, DistServer.ping), int), "methods stay"


@pytest.mark.usefixtures("_server")
def test_what_a_server_has_no_leave_for_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"no permission to run .*\.nothing.: start it with "):
        request_server(0, nothing)
    with pytest.raises(ConfigError, match="may ask for these methods of DistServer"):
        request_server(0, lambda: 1)
    with pytest.raises(ConfigError, match=r"None, numbers, strings.*tensors"):
        request_server(0, tell, object())
    with pytest.raises(ConfigError, match=r"None, numbers, strings.*tensors"):
        request_server(0, leak)
    with pytest.raises(RemoteError, match="KeyError: 'here'"):
        request_server(0, fail, "here")


@pytest.mark.usefixtures("_server")
@pytest.mark.parametrize("path", [f"{HERE}.absent", f"{HERE}.torch.load"])
def test_what_is_no_function_of_the_module_is_refused(path: str) -> None:
    arguments: dict[str, Any] = {"data": b"", "tensors": ()}
    with pytest.raises(ConfigError, match=r"cannot import|no function of that module"):
        request_server(0, DistServer.run_function, path, **arguments)


def test_a_function_of_the_script_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nothing, "__module__", "__main__")
    with storage() as (endpoint,), joined(endpoint.address) as cluster:
        monkeypatch.setattr(compute_process, "_cluster", cluster)
        with pytest.raises(ConfigError, match="put it into a module that they find"):
            request_server(0, nothing)
