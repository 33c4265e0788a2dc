"""What the ranks of ``test_device_rows.py`` do, and what stands in for NCCL and for a GPU.

`NotedMemory` is memory of the CPU that counts as a device's: it notes each piece of it, and a copy
to it is a copy. `StandIn` is a backend, registered with torch, that refuses all other memory.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch_geometric.data import Data

from gigl_loader import (
    DistABLPLoader,
    DistDataset,
    DistNeighborLoader,
    PeerError,
    PeerTimeoutError,
    replay,
)
from gigl_loader.batch.device.device_memory import DeviceMemory
from gigl_loader.sources.in_process import device_rows
from gigl_loader.testing import batch_digest, check_same_batches
from tests.loader import rank_jobs
from tests.sources.in_process import in_process_jobs
from tests.sources.in_process.in_process_jobs import linked
from tests.support.broken_groups import end_at_once, meet_in_store
from tests.support.sources import wait_for_batches

GRAPH, CASES, COMMON = rank_jobs.GRAPH, rank_jobs.CASES, rank_jobs.COMMON
BACKEND = "stand_in"


class NotedMemory(DeviceMemory):
    """Memory of a pretended device."""

    pieces: ClassVar[list[Tensor]] = []
    """All of it: kept, so that no memory of the host ever has one of its addresses."""
    lent: ClassVar[set[int]] = set()

    @classmethod
    def holds(cls, tensor: Tensor) -> bool:
        address = tensor.untyped_storage().data_ptr()
        return any(address == piece.untyped_storage().data_ptr() for piece in cls.pieces)

    def empty(self, nbytes: int) -> Tensor:
        self.pieces.append(super().empty(nbytes).fill_(0xAB))
        return self.pieces[-1]

    def uploaded(self, host: Tensor) -> Tensor:
        assert not self.holds(host)
        return self.empty(host.numel()).copy_(host)

    def lend(self, tensors: Any) -> None:
        self.lent.update(one.untyped_storage().data_ptr() for one in tensors)


class StandIn(dist.ProcessGroup):
    """Exchanges by gloo what lies on the pretended device, or on a GPU; nothing else."""

    exchanges = 0

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch's own types lack this one
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)

    # what torch asks of a backend of its own

    def getBackendName(self) -> str:
        return BACKEND

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> Any:
        return self._name

    def shutdown(self) -> None:
        pass

    def alltoall_base(self, came: Tensor, sent: Tensor, *how: Any) -> Any:
        for one in (came, sent):
            if not one.is_cuda and not NotedMemory.holds(one):
                raise RuntimeError("No backend type associated with device type cpu")
        StandIn.exchanges += 1
        self.before_an_exchange()
        on_host = torch.empty_like(came, device="cpu")
        self._gloo.alltoall_base(on_host, sent.cpu(), *how).wait()
        came.copy_(on_host)
        done: Any = torch.futures.Future()
        done.set_result([came])
        c10d: Any = torch._C._distributed_c10d
        return c10d._create_work_from_future(done)

    def before_an_exchange(self) -> None:
        """What a test has happen."""


@contextmanager
def pretended_device() -> Iterator[None]:
    """Let batches that go to the CPU count as going to a device that `StandIn` exchanges for."""
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, StandIn, devices=["cuda"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_rows, "backend_for", lambda device: BACKEND)
        patch.setattr(device_rows, "DeviceMemory", NotedMemory)
        yield


def _rows_of(batch: Any) -> list[Tensor]:
    """Return what a batch has as rows of the dataset."""
    stores = batch.stores if hasattr(batch, "stores") else [batch]
    names = ("x", "y", "edge_attr", "edge_weight")
    return [store[name] for store in stores for name in names if name in store]


def _same(whole: Any, parts: Any) -> None:
    found = list(parts)
    for batch in found:
        assert _rows_of(batch), "no rows to look at"
        for rows in _rows_of(batch):
            if rows.numel():
                assert NotedMemory.holds(rows), "not delivered on the device"
                assert rows.untyped_storage().data_ptr() in NotedMemory.lent
    check_same_batches(whole, found)


def rows_stay_on_the_device(rank: int, size: int) -> None:
    """Same bits as of one process; then every other job of ``in_process_jobs`` that all survive."""
    with pretended_device():
        for graph, edge_dir, given, how in CASES.values():
            with (
                DistNeighborLoader(
                    graph.dataset(edge_dir=edge_dir),
                    input_nodes=given,
                    num_workers=0,
                    **COMMON,
                    **how,
                ) as whole,
                DistNeighborLoader(
                    graph.partitions(size, edge_dir=edge_dir)[rank],
                    input_nodes=given,
                    exchange="collective",
                    **COMMON,
                    **how,
                ) as parts,
            ):
                before = StandIn.exchanges
                for _ in range(2):
                    _same(whole, parts)
                assert StandIn.exchanges > before
                assert batch_digest(replay(parts, 1, 0)) == batch_digest(replay(whole, 1, 0))
        _of_other_types(rank, size)
        _of_links(rank, size)
        in_process_jobs.ranks_that_have_fewer_batches(rank, size)
        in_process_jobs.all_break_off(rank, size)
        in_process_jobs.beside_other_collectives(rank, size)
        _in_one_order(rank, size)
        _an_answer_fails(rank)


def _of_links(rank: int, size: int) -> None:
    how: dict[str, Any] = {"batch_size": 7, "seed": 2}
    with (
        DistABLPLoader(linked(0, 1), [2, 2], torch.arange(60), num_workers=0, **how) as whole,
        DistABLPLoader(
            linked(rank, size), [2, 2], torch.arange(60), exchange="collective", **how
        ) as parts,
    ):
        check_same_batches(whole, parts)


def _of_other_types(rank: int, size: int) -> None:
    """Rows of odd widths, of types that numpy does not know, and of none."""
    count = 60
    graph = GRAPH.to_pyg()
    data = Data(edge_index=graph.edge_index, num_nodes=count)
    data.x = torch.randn(count, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    data.y = torch.arange(count)
    data.train_mask = torch.arange(count) % 3 == 0
    data.nothing = torch.empty(count, 0)
    data.wide = torch.arange(count * 6, dtype=torch.uint8).view(count, 3, 2)
    book: dict[str, Any] = {"partition_book": torch.arange(count) % size, "partition_idx": rank}
    how: dict[str, Any] = {"num_neighbors": [3, 3], "input_nodes": torch.arange(count), "seed": 1}
    with (
        DistNeighborLoader(DistDataset.from_pyg(data), num_workers=0, batch_size=9, **how) as whole,
        DistNeighborLoader(
            DistDataset.from_pyg(data, **book), exchange="collective", batch_size=9, **how
        ) as parts,
    ):
        _same(whole, parts)


def _in_one_order(rank: int, size: int) -> None:
    """Lanes exchange rows while the trainer waits for a batch, never in the middle of a step."""
    log: list[str] = []
    with (
        pytest.MonkeyPatch.context() as patch,
        in_process_jobs.loader_of(rank, size, worker_concurrency=3) as loader,
    ):
        exchange = staticmethod(lambda: log.append("loader's"))
        patch.setattr(StandIn, "before_an_exchange", exchange)
        for at, _ in enumerate(loader):
            if rank == 0:  # slow: its lanes could run ahead as far as they may
                wait_for_batches(loader, min(2, len(loader) - at - 1))
            log.append("model's")
            dist.all_reduce(torch.ones(1))
    total = len(loader)
    wanted = ["loader's"] * 2
    for step in range(total):
        wanted += ["loader's"] * (step + 2 < total) + ["model's"]
    assert log == wanted


def _an_answer_fails(rank: int) -> None:
    """Rank 1 cannot load what it is asked for: an error on all ranks; an epoch later it can."""

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("on purpose")

    text = "rows for the ranks.*on purpose" if rank == 1 else "rank 1 could not sample"
    with in_process_jobs.loader_of(rank, dist.get_world_size()) as loader:
        with pytest.MonkeyPatch.context() as patch:
            if rank == 1:
                patch.setattr(NotedMemory, "on_host", fail)
            with pytest.raises(PeerError, match=text):
                list(loader)
            dist.barrier()  # until all have failed
        assert len(list(loader)) == len(loader)


def a_rank_dies_while_rows_are_exchanged(rank: int, size: int) -> None:
    with pretended_device():
        loader = in_process_jobs.loader_of(rank, size)
        meet_in_store("all have built")
        if rank == 1:
            die = partial(os.kill, os.getpid(), signal.SIGKILL)
            pytest.MonkeyPatch().setattr(StandIn, "before_an_exchange", staticmethod(die))
        with pytest.raises(PeerError, match=r"rank 1 .*has ended"):
            list(loader)
    end_at_once()


def a_device_passes_nothing(rank: int, size: int) -> None:
    """As with NCCL after another rank's end: its exchange never ends, and only a wait knows it."""
    limit, error = 2.0, "nothing came from the devices of other ranks within 2 s"
    with pretended_device(), pytest.MonkeyPatch.context() as patch:
        # one lane: a second one would see the first one's end on the other rank before its own
        loader = in_process_jobs.loader_of(rank, size, timeout=limit, worker_concurrency=1)
        meet_in_store("all have built")
        patch.setattr(NotedMemory, "has_passed", lambda self, event: False)
        with pytest.raises(PeerTimeoutError, match=error):
            next(iter(loader))
        meet_in_store("all have given up a batch")
        with pytest.raises(PeerTimeoutError, match=error):
            in_process_jobs.loader_of(rank, size, timeout=limit)
        meet_in_store("all have given up a start")
    end_at_once()


def gpus(rank: int, size: int) -> None:
    """The same on GPUs: by NCCL where each rank has one, else by the stand-in on what there is."""
    own = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(own)
    backend = "nccl" if torch.cuda.device_count() >= size else BACKEND
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(BACKEND, StandIn, devices=["cuda"])
    graph, edge_dir, given, how = CASES["plain"]
    used: list[torch.device] = []

    def memory_of(device: torch.device) -> DeviceMemory:
        used.append(device)
        return DeviceMemory(device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_rows, "backend_for", lambda device: backend)
        patch.setattr(device_rows, "DeviceMemory", memory_of)
        with (
            DistNeighborLoader(
                graph.dataset(edge_dir=edge_dir),
                input_nodes=given,
                num_workers=0,
                pin_memory_device=own,
                **COMMON,
                **how,
            ) as whole,
            DistNeighborLoader(
                graph.partitions(size, edge_dir=edge_dir)[rank],
                input_nodes=given,
                exchange="collective",
                pin_memory_device=own,
                **COMMON,
                **how,
            ) as parts,
        ):
            assert used == [own], "rows go from device to device"
            for _ in range(2):
                check_same_batches(whole, parts)
