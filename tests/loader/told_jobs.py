"""What the ranks of `test_told.py` do: one of them cannot build its loader."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from gigl_loader import (
    BaseDistLoader,
    ConfigError,
    CustomSamplerOptions,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    PeerError,
    RemoteDistDataset,
    SamplingError,
    WrongTypeError,
    release_workers,
)
from gigl_loader.loader.seeds import world
from gigl_loader.runtime.ranks.collectives import (
    broadcast_value,
    decide_with_ranks,
    gather_from_ranks,
    report_failure_to_ranks,
)
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.options import EvenRanks
from gigl_loader.testing import Footprint
from tests.loader import world_jobs
from tests.support.broken_groups import end_at_once, meet_in_store
from tests.support.glt import CollocatedDistSamplingWorkerOptions, NodeSamplerInput

GRAPH = world_jobs.GRAPH
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a keyword": ({"batch_size": 0}, "batch_size must be"),
    "an unknown keyword": ({"btch_size": 3}, "btch_size"),
    "a fanout": ({"num_neighbors": [[3], [2]]}, "num_neighbors"),
    "a shape": ({"input_nodes": torch.zeros(2, 2, dtype=torch.int64)}, "input_nodes must be"),
    "a range": ({"input_nodes": torch.tensor([99])}, "input_nodes.* = 99 is no node id"),
    "a weight": ({"with_weight": True}, "no weights"),
    "a transform": ({"transform": 3}, "transform"),
}
"""Arguments of rank 1 that only it can find wrong, and words of the error."""


def one_is_wrong(rank: int, build: Callable[[], Any], words: str) -> None:
    """Rank 1 raises its own error, the others one that names it and the cause."""
    kind: Any = (ConfigError, WrongTypeError, SamplingError)
    if rank != 1:
        kind, words = PeerError, f"rank 1 could not build its loader: .*{words}"
    with pytest.raises(kind, match=words):
        build()


def _colocated(rank: int, size: int) -> dict[str, dict[str, Any]]:
    return {
        "here": {"dataset": DistDataset.from_pyg(_plain()), "num_workers": 0},
        "workers": {"dataset": DistDataset.from_pyg(_plain())},
        "collective": {"dataset": GRAPH.partitions(size)[rank], "exchange": "collective"},
    }


def _plain() -> Any:
    """Return a graph without weights."""
    data = GRAPH.to_pyg()
    return type(data)(x=data.x, edge_index=data.edge_index)


def colocated(rank: int, size: int) -> None:
    """No rank waits for the group's deadline; afterwards all can build their loaders."""
    for name, how in _colocated(rank, size).items():
        for bad, words in BAD.values():
            if name == "collective" and "with_weight" in bad:
                continue  # these partitions have weights
            good = {"num_neighbors": [2], "input_nodes": torch.arange(20), "seed": 1, **how}
            given = {**good, **(bad if rank == 1 else {})}
            one_is_wrong(rank, partial(DistNeighborLoader, **given), words)
        with DistNeighborLoader(**good) as loader:
            assert len(list(loader)) == len(loader)
    _other_loaders(rank)
    _late_failures(rank, size)
    release_workers()
    assert not Footprint.below().alive(), "no process is left"


def _other_loaders(rank: int) -> None:
    data, edges = DistDataset.from_pyg(_plain()), _plain().edge_index
    one_is_wrong(
        rank,
        lambda: DistLinkNeighborLoader(
            data, [2], edges, neg_sampling="odd" if rank == 1 else None, num_workers=0
        ),
        "neg_sampling must be",
    )
    one_is_wrong(
        rank,
        lambda: DistABLPLoader(data, [2], torch.arange(4), batch_size=-rank or 1),
        "batch_size must be",
    )


class Broken(NeighborSampler):
    """A sampler that cannot be built on rank 1."""

    def __init__(self, *given: Any) -> None:
        if int(os.environ["RANK_OF_TEST"]) == 1:
            raise ZeroDivisionError("on purpose")
        super().__init__(*given)


def _late_failures(rank: int, size: int) -> None:
    """After ranks met: a sampler that cannot be built, in a worker, here, or with others."""
    os.environ["RANK_OF_TEST"] = str(rank)
    options = CustomSamplerOptions("tests.loader.told_jobs.Broken", {})
    for how in _colocated(rank, size).values():
        if rank == 1:
            with pytest.raises((SamplingError, ZeroDivisionError), match="on purpose"):
                DistNeighborLoader(
                    num_neighbors=[2], sampler_options=options, max_restarts=0, **how
                )
        else:
            with pytest.raises(PeerError, match=r"rank 1 .*on purpose"):
                DistNeighborLoader(
                    num_neighbors=[2], sampler_options=options, max_restarts=0, **how
                )


def store(info: Any, rank: int) -> None:
    """As `colocated`, from a graph store."""
    remote = RemoteDistDataset(info, rank)
    seeds = {rank: torch.arange(20 * rank, 20 * rank + 9 + rank)}
    good: dict[str, Any] = {"num_neighbors": [2], "input_nodes": seeds, "seed": 1, "batch_size": 2}
    for bad, words in (
        ({"batch_size": 0}, "batch_size must be"),
        ({"num_neighbors": {("a", "to", "b"): [2]}}, "num_neighbors"),
        ({"input_nodes": {0: torch.tensor([99])}}, "= 99 is no node id"),
        ({"num_workers": 0}, "num_workers=0"),
        ({"transform": 3}, "transform"),
    ):
        given = {**good, **(bad if rank == 1 else {})}
        one_is_wrong(rank, partial(DistNeighborLoader, remote, **given), words)
    assert _uneven(_logged(lambda: len(_epoch(remote, **good)))) == []
    good["input_nodes"] = {rank: torch.arange(20 * rank, 20 * rank + 8 + 4 * rank)}
    found = _logged(lambda: _epoch(remote, **good))
    assert _uneven(found) == (["6 on rank 1 and 4 on rank 0"] if rank == 0 else [])
    ways: tuple[tuple[EvenRanks, int], ...] = (("drop", 4), ("wrap", 6))
    for even, steps in ways:
        with DistNeighborLoader(remote, even_ranks=even, **good) as loader:
            assert len(list(loader)) == len(loader) == steps


def _epoch(dataset: Any, **how: Any) -> list[Any]:
    with DistNeighborLoader(dataset, **how) as loader:
        return list(loader)


def _logged(job: Callable[[], Any]) -> list[str]:
    """Return what this package logs meanwhile, as in a process that has said nothing yet."""
    with _log() as found:
        job()
    return found


@contextmanager
def _log() -> Iterator[list[str]]:
    """Give the list of what this package logs in the block."""
    found: list[str] = []
    world.has_warned.clear()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    handler = Handler()
    logging.getLogger("gigl_loader").addHandler(handler)
    try:
        yield found
    finally:
        logging.getLogger("gigl_loader").removeHandler(handler)


def _uneven(logged: list[str]) -> list[str]:
    """Return what was said of ranks with different numbers of batches."""
    return [
        one.partition("batches: ")[2].partition(".")[0]
        for one in logged
        if "different numbers of batches" in one and "even_ranks=" in one
    ]


def uneven(rank: int, size: int) -> None:
    """One warning on rank 0; and an empty rank with "wrap" is an error on all of them."""
    _uneven_once(rank)
    for how in _colocated(rank, size).values():
        build = partial(_epoch_of, how)
        warned = ["3 on rank 0 and 2 on rank 1"] if rank == 0 else []
        assert _uneven(_logged(partial(build, 9))) == warned
        assert _uneven(_logged(partial(build, 8))) == []
        assert _uneven(_logged(partial(build, 9, even_ranks="drop"))) == []
        assert _uneven(_logged(partial(build, 9, shard="world"))) == warned
        assert _uneven(_logged(partial(build, 9, shard="world", even_ranks="wrap"))) == []
        with pytest.raises(ConfigError, match=r"'wrap'.*ranks \[1\] have: .*\[1, 0\]"):
            build(1, even_ranks="wrap")


def _uneven_once(rank: int) -> None:
    """The warning comes once per process, at the first epoch that may train."""

    def train_and_validate() -> None:
        seeds = torch.arange(9)
        how: dict[str, Any] = {"batch_size": 2, "seed": 1, "num_workers": 0}
        with (
            DistNeighborLoader(GRAPH.dataset(), [2], seeds, **how) as training,
            DistNeighborLoader(GRAPH.dataset(), [2], seeds, **how) as validation,
        ):
            assert _uneven(seen) == [], "the warning does not come before training does"
            for _ in range(2):
                with torch.no_grad():
                    assert len(list(validation)) == len(validation)
                with torch.inference_mode():
                    assert len(list(validation)) == len(validation)
                assert _uneven(seen) == told
                assert len(list(training)) == len(training)
                assert len(list(validation)) == len(validation)
                told[:] = ["3 on rank 0 and 2 on rank 1"] if rank == 0 else []
                assert _uneven(seen) == told

    told: list[str] = []
    with _log() as seen:
        train_and_validate()


def _epoch_of(how: dict[str, Any], seeds: int, **more: Any) -> None:
    with DistNeighborLoader(
        num_neighbors=[2], input_nodes=torch.arange(seeds), batch_size=2, seed=1, **how, **more
    ) as loader:
        assert sum(batch.batch_size for batch in loader) >= 1


class Idle:
    """A producer that nobody asks for a batch."""

    output_channel = SimpleNamespace(recv=dict)  # compiled: it tells no parameters

    def init(self) -> None:
        pass

    produce_all = shutdown = init


def of_the_base(rank: int, size: int) -> None:
    """Who makes the parts and calls the base class has not been through our loaders' checks."""
    dataset, runtime = DistDataset.from_pyg(_plain()), BaseDistLoader.resolve_runtime()
    device = torch.device("cpu")
    BaseDistLoader.initialize_colocated_sampling_worker(
        local_rank=rank,
        local_world_size=size,
        node_rank=0,
        node_world_size=1,
        master_ip_address="127.0.0.1",
        device=device,
        num_cpu_threads=None,
    )
    build = partial(
        BaseDistLoader,
        dataset,
        NodeSamplerInput(torch.arange(8)),
        dataset.schema,
        CollocatedDistSamplingWorkerOptions("127.0.0.1", 1),
        BaseDistLoader.create_sampling_config([2], dataset.schema, 4),
        device,
        runtime,
        Idle(),
        process_start_gap_seconds=0,
    )
    for bad, words in (({"even_ranks": "odd"}, "even_ranks must"), ({"transform": 3}, "transform")):
        one_is_wrong(rank, partial(build, **(bad if rank == 1 else {})), words)
    with build() as loader:
        assert len(loader) == 2


def others_never_come(rank: int, size: int) -> None:
    """A rank that nobody listens to raises its own error, and does not wait for ever."""
    if rank == 1:
        with pytest.raises(ConfigError, match="batch_size must be"):
            DistNeighborLoader(GRAPH.dataset(), [2], batch_size=0)
    meet_in_store("rank 1 has raised")
    end_at_once()


def _divide(rank: int, exchange: Callable[[], Any]) -> None:
    if rank == 1:
        raise ZeroDivisionError("x" * 5000)
    exchange()


def told_once(rank: int, size: int) -> None:
    """Blocks in blocks tell an error once, and any exchange hears of it."""
    for exchange in (
        lambda: gather_from_ranks(rank, size, int),
        lambda: broadcast_value(rank, size, int),
        lambda: decide_with_ranks(rank, size, int, sum, int),
    ):
        with (
            pytest.raises((PeerError, ZeroDivisionError)) as caught,
            report_failure_to_ranks("could not add"),
            report_failure_to_ranks("could not divide"),
        ):
            _divide(rank, exchange)
        if rank != 1:
            assert str(caught.value).startswith("rank 1 could not divide: ZeroDivisionError: xxx")
    with pytest.raises(ConfigError, match=f"own {rank}"), report_failure_to_ranks("could not"):
        raise ConfigError(f"own {rank}")  # all of them
    total = torch.tensor([rank])
    dist.all_reduce(total)
    assert int(total) == sum(range(size)), "the group is in step"
