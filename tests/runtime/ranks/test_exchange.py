"""Where rows lie while ranks exchange them, by backend; what they exchange is compared elsewhere.

No GPU is needed: a backend that notes what it is given stands in for NCCL, and torch's ``meta``
device, which has no memory, for the GPU.
"""

from typing import Any

import pytest
import torch

from gigl_loader.runtime.ranks import collectives as ranks
from gigl_loader.runtime.ranks.collectives import RankExchange, RowsFromRanks
from tests.inference.exchange_in_threads import ThreadExchange, run_threads


class _Backend:
    """The process group of two ranks, of which this is the first: notes devices of what it gets."""

    is_available = is_initialized = staticmethod(lambda: True)

    def __init__(self, name: str) -> None:
        self.name, self.devices = name, list[str]()

    def get_world_size(self, group: Any) -> int:
        return 2

    def get_rank(self, group: Any) -> int:
        return 0

    def get_backend_config(self, group: Any) -> str:
        # torch lists gloo for CUDA too; it takes tensors of the CPU alone
        return f"cpu:{self.name},meta:{self.name}" if self.name == "gloo" else f"meta:{self.name}"

    def all_to_all_single(self, found: Any, given: Any, *sizes: Any, group: Any) -> None:
        assert found.dtype == given.dtype == torch.uint8
        self.devices += [given.device.type, found.device.type]

    def all_reduce(self, values: Any, group: Any) -> None:
        self.devices.append(values.device.type)


def _exchange(monkeypatch: pytest.MonkeyPatch, name: str) -> tuple[RankExchange, _Backend]:
    backend = _Backend(name)
    monkeypatch.setattr(ranks, "dist", backend)
    return RankExchange(), backend


@pytest.mark.parametrize("name", ["nccl", "another"])
def test_rows_go_from_device_to_device(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    swaps, backend = _exchange(monkeypatch, name)
    rows = torch.empty((5, 3), device="meta", dtype=torch.bfloat16, requires_grad=True)
    came = swaps.all_to_all(rows, [2, 3], [4, 0])
    assert came.device.type == "meta"
    assert came.shape == (4, 3)
    came.sum().backward()
    assert rows.grad is not None
    assert rows.grad.device.type == "meta"
    assert swaps.total(rows).device.type == "meta"
    assert set(backend.devices) == {"meta"}, "nothing went through the CPU"


def test_gloo_reads_the_memory_of_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    swaps, backend = _exchange(monkeypatch, "gloo")
    swaps.all_to_all(torch.empty(5, 3), [2, 3], [4, 0])
    assert backend.devices == ["cpu", "cpu"]


def test_nccl_is_given_what_lies_on_the_cpu_on_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    swaps, backend = _exchange(monkeypatch, "nccl")
    with pytest.raises(NotImplementedError):  # the stand-in has no values to bring back
        swaps.all_to_all(torch.empty(5, 3), [2, 3], [4, 0])
    assert backend.devices == ["meta", "meta"]


@pytest.mark.parametrize("size", [2, 9])
def test_each_rank_is_asked_for_its_own_ids_and_itself_for_none(size: int) -> None:
    """Of few ranks and of many, which are put in order in two ways; one needs nothing."""

    def job(exchange: ThreadExchange) -> None:
        random = torch.Generator().manual_seed(exchange.rank)
        count = 0 if exchange.rank == 1 else 40
        ids = torch.randint(0, 100, (count,), generator=random)
        asked = RowsFromRanks(exchange, ids, ids % size)
        assert (ids[asked.mine] % size == exchange.rank).all()
        assert (asked.theirs % size == exchange.rank).all()
        others = ids[asked.others]
        assert (others % size != exchange.rank).all()
        assert sorted([*asked.mine, *asked.others]) == list(range(count))
        assert torch.equal(asked.answers(10 * asked.theirs), 10 * others)
        came = torch.empty(len(asked.others), dtype=torch.int64)
        assert asked.answers(asked.theirs, came) is came
        assert torch.equal(came, others)

    run_threads(size, job)
