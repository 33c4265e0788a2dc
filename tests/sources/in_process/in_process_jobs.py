"""What the ranks of ``test_in_process.py`` do; a module, so that their processes can import it."""

import os
import re
import signal
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from gigl_loader import (
    ConfigError,
    CustomSamplerOptions,
    DistABLPLoader,
    DistDataset,
    DistNeighborLoader,
    PeerError,
    PeerTimeoutError,
    SamplingError,
    full_graph,
)
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.plan import SampleRequest
from gigl_loader.sampler.rows.reader import LocalReader
from gigl_loader.sources.workers.pool import process_state
from gigl_loader.testing import Footprint, check_same_batches
from tests.loader import rank_jobs
from tests.support.broken_groups import end_at_once, meet_in_store

GRAPH, CASES, COMMON = rank_jobs.GRAPH, rank_jobs.CASES, rank_jobs.COMMON


def linked(rank: int, size: int) -> DistDataset:
    """Return a graph with labels, whole or this rank's part."""
    pairs = torch.tensor([[i, (7 * i + 3) % 60] for i in range(60)]).t()
    graph = GRAPH.to_pyg()
    data = Data(x=graph.x, edge_index=graph.edge_index)
    book: dict[str, Any] = (
        {} if size == 1 else {"partition_book": torch.arange(60) % size, "partition_idx": rank}
    )
    return DistDataset.from_pyg(data, supervision=(pairs, pairs.roll(1, 1)), **book)


def same_batches_as_workers(rank: int, size: int) -> None:
    for graph, edge_dir, given, how in CASES.values():
        whole = DistNeighborLoader(
            graph.dataset(edge_dir=edge_dir), input_nodes=given, **COMMON, **how
        )
        parts = DistNeighborLoader(
            graph.partitions(size, edge_dir=edge_dir)[rank],
            input_nodes=given,
            exchange="collective",
            **COMMON,
            **how,
        )
        with whole, parts:
            _same_epochs(whole, parts, rank)
    with (
        DistABLPLoader(linked(0, 1), [2, 2], torch.arange(60), batch_size=7, seed=2) as whole,
        DistABLPLoader(
            linked(rank, size),
            [2, 2],
            torch.arange(60),
            batch_size=7,
            seed=2,
            exchange="collective",
        ) as parts,
    ):
        check_same_batches(whole, parts)


def _same_epochs(whole: DistNeighborLoader, parts: DistNeighborLoader, rank: int) -> None:
    assert len(whole) == len(parts)
    check_same_batches(whole, parts)
    whole.set_epoch(3)
    for index, _ in enumerate(whole):  # an epoch that one rank breaks off, and others do not
        if index == 1 and rank == 0:
            break
    parts.set_epoch(3)
    for index, _ in enumerate(parts):
        if index == 1 and rank == 0:
            break
    check_same_batches(whole, parts)
    state = parts.state_dict()
    parts.load_state_dict(state)
    check_same_batches(whole, parts)


def ranks_that_have_fewer_batches(rank: int, size: int) -> None:
    for given in (torch.arange(9), torch.arange(1)):
        with DistNeighborLoader(
            GRAPH.partitions(size)[rank],
            [3, 3],
            given,
            batch_size=2,
            seed=1,
            exchange="collective",
            worker_concurrency=5 - rank,
        ) as loader:
            for _ in range(3):
                found = [batch.batch.tolist() for batch in loader]
                everyone: list[Any] = [None] * size
                dist.all_gather_object(everyone, found)
                seeds = sorted(seed for part in everyone for batch in part for seed in batch)
                assert seeds == given.tolist()


def all_break_off(rank: int, size: int) -> None:
    """Ranks that leave together wait for nobody: far more batches than any would sample."""
    with DistNeighborLoader(
        GRAPH.partitions(size)[rank], [3], torch.arange(60).repeat(2000), exchange="collective"
    ) as loader:
        for _ in range(3):
            next(iter(loader))


def loader_of(rank: int, size: int, **how: Any) -> DistNeighborLoader:
    return DistNeighborLoader(
        GRAPH.partitions(size)[rank],
        [3, 3],
        torch.arange(60),
        batch_size=2,
        seed=1,
        exchange="collective",
        **how,
    )


def a_rank_dies(rank: int, size: int) -> None:
    loader = loader_of(rank, size)
    batches = iter(loader)
    next(batches)
    meet_in_store("before rank 1 dies")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerError, match=r"rank 1 \(pid \d+\) has ended"):
        list(batches)
    end_at_once()


def a_rank_stops_beside_two(rank: int, size: int) -> None:
    """Rank 1 is stopped in its epoch: both others say so, and not that it has ended.

    Rank 0 gives up first, and closes its connections to rank 2. gloo tells rank 2 of it unless it
    has all of rank 0 already and waits for rank 1 alone: then its own time has to pass.
    """
    pids: list[Any] = [None] * size
    dist.all_gather_object(pids, os.getpid())
    batches = iter(loader_of(rank, size, timeout=10 if rank == 0 else 25))
    next(batches)
    meet_in_store("before rank 1 stops")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if rank == 2:
        # Not in an exchange while rank 0 gives up: where it had all of rank 0 already, and waited
        # for rank 1 alone, gloo would not tell it that rank 0 has closed.
        meet_in_store("rank 0 has given up", [0, 2])
    with pytest.raises(
        PeerTimeoutError, match=r"rank 1 \(pid \d+\) is stopped by a signal"
    ) as told:
        list(batches)
    assert "has ended" not in str(told.value)
    if rank == 0:
        meet_in_store("rank 0 has given up", [0, 2])
    meet_in_store("both have given up", [0, 2])
    if rank == 0:
        os.kill(pids[1], signal.SIGKILL)
    end_at_once()


def a_rank_stops(rank: int, size: int) -> None:
    """Rank 1 is stopped between two layers of the full graph, and its loader with it.

    An error on rank 0 at the timeout, of the loader and of the full graph; nothing remains of it.
    """
    pids: list[Any] = [None] * size
    dist.all_gather_object(pids, os.getpid())
    model = GraphSAGE(2, 2, 2).eval()
    unhooked = _hooks_of(model)
    with pytest.raises(PeerTimeoutError, match=r"rows of the full graph.*process group's timeout"):
        _stops_between_layers(rank, size, model, pids[1])
    assert _hooks_of(model) == unhooked
    assert not Footprint.below().alive(), "no process was started, and none is left"
    end_at_once()


def _stops_between_layers(rank: int, size: int, model: GraphSAGE, pid: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=10))
    batches = iter(loader_of(rank, size, timeout=10))
    found: list[BaseException] = []
    sampling = threading.Thread(target=lambda: found.append(_error_of(lambda: list(batches))))
    with full_graph(model, GRAPH.partitions(size)[rank], group=group) as data, torch.no_grad():
        model(data.x, data.edge_index)
        next(batches)
        meet_in_store("before rank 1 stops")
        if rank == 1:
            model.convs[0].register_forward_hook(lambda *_: os.kill(os.getpid(), signal.SIGSTOP))
            model(data.x, data.edge_index)
        sampling.start()  # both wait at the same time
        try:
            model(data.x, data.edge_index)  # rank 1 has computed the first layer, and no other
        finally:
            sampling.join(60)
            state = process_state(pid)
            os.kill(pid, signal.SIGKILL)
            assert "stopped by a signal" in state, "it stood still until it was given up"
            assert isinstance(found[0], PeerTimeoutError), found
            assert re.search(r"for 10 s.*rank 1 \(pid \d+\) is stopped by", str(found[0])), found


def _hooks_of(model: torch.nn.Module) -> list[int]:
    return [len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules()]


def _error_of(job: Any) -> BaseException:
    try:
        job()
    except Exception as error:
        return error
    raise AssertionError("there was no error")


class Raising(NeighborSampler):
    """Raises at the third batch of rank 1, or forgets to return it."""

    def __init__(self, *args: Any, silent: bool = False) -> None:
        super().__init__(*args)
        self._silent = silent

    def sample(self, request: SampleRequest) -> Any:
        if dist.get_rank() == 1 and request.ticket.batch == 2:
            if self._silent:
                return None
            raise ZeroDivisionError("on purpose")
        return super().sample(request)


def a_sampler_raises(rank: int, size: int) -> None:
    for silent, told in ((False, "on purpose"), (True, "Raising.sample.* returned None")):
        options = CustomSamplerOptions(
            "tests.sources.in_process.in_process_jobs.Raising", {"silent": silent}
        )
        kind, text = (SamplingError, f"batch 2.*{told}") if rank == 1 else (PeerError, "rank 1")
        with (
            loader_of(rank, size, sampler_options=options) as loader,
            pytest.raises(kind, match=text),
        ):
            list(loader)
    with (
        loader_of(rank, size, transform=lambda batch: None) as loader,
        pytest.raises(ConfigError, match=r"transform= .* returned None"),
    ):
        list(loader)
    for asked in ("answer_draw", "rows_asked"):
        _an_answer_fails(rank, size, asked)


def _an_answer_fails(rank: int, size: int, asked: str) -> None:
    """Rank 1 cannot answer: an error on all ranks; an epoch later it can again."""

    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("on purpose")

    kind, text = (
        (SamplingError, "to another rank.*on purpose")
        if rank == 1
        else (PeerError, "rank 1 could not sample")
    )
    with loader_of(rank, size) as loader:
        with pytest.MonkeyPatch.context() as patch:
            if rank == 1:
                patch.setattr(LocalReader, asked, fail)
            with pytest.raises(kind, match=text):
                list(loader)
            dist.barrier()  # until both have failed
        assert len(list(loader)) == len(loader)


def different_epochs(rank: int, size: int) -> None:
    with loader_of(rank, size) as loader:
        loader.set_epoch(rank)
        with pytest.raises(ConfigError, match=r"they start \[0, 1\]"):
            list(loader)


def beside_other_collectives(rank: int, size: int) -> None:
    """The trainer's collectives and the sampler's do not meet, whoever is first."""
    with loader_of(rank, size) as loader:
        for batch in loader:
            total = torch.tensor([batch.batch_size])
            dist.all_reduce(total)
            assert int(total) == 2 * size
