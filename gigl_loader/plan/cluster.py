"""A little cluster on this machine: what its processes spend on a batch, for `calibrate`.

::

    parent --pipe-- 2 ranks, with workers --- 2 storage servers, with workers (or none)
    "at work" -->   batches, batches        } CPU seconds of all these processes
    "done"    <--   how large they were     } are counted in between

Processes of one machine would read each other's memory; they are told not to, so everything goes
over the transport, as between machines. They are forked from one that has imported what they need:
nothing of what is counted depends on it, and imports took half of the time.
"""

import contextlib
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gigl_loader.errors import PeerError
from gigl_loader.processes import ForkedProcess
from gigl_loader.workers.pool import read_stat

RANKS = 2
_WARM_UP, _COUNTED, _AFTER = 8, 24, 6
"""Batches of a rank: until all that is ahead is under way, those that count, and those after them,
so that there is as much ahead at the end as at the beginning."""
_CACHE_WARM_UP, _CACHE_AFTER = 10, 48
"""The same where rows are kept: until the cache is full, and as many as are drawn ahead at most."""
_SMALL, _MORE = 256, 4
"""Batches of fewer seeds take less, so that as many more times of them are counted."""
_WAIT_S = 120.0
"""For a word of another process: it may have to read a graph first, and all share these cores."""
_HZ = os.sysconf("SC_CLK_TCK")


_Ports = dict[str, tuple[int, int]]
"""By graph, of the storage servers that have it."""


@dataclass(frozen=True)
class BatchKind:
    """Batches of one kind."""

    root: str
    """A directory with one partition for each rank."""
    fanouts: tuple[int, ...]
    batch_size: int
    cache: float = 0.0
    from_store: bool = False

    @property
    def counted(self) -> int:
        """Batches of a rank that count."""
        return _COUNTED * self._times

    @property
    def warm_up(self) -> int:
        """Batches of a rank before them."""
        return _CACHE_WARM_UP * self._times if self.cache else _WARM_UP

    @property
    def taken(self) -> int:
        """Batches of a rank's epoch."""
        return self.warm_up + self.counted + (_CACHE_AFTER * self._times if self.cache else _AFTER)

    @property
    def _times(self) -> int:
        return _MORE if self.batch_size < _SMALL else 1


@dataclass(frozen=True)
class Took:
    """Size of a batch and its costs: means over all ranks."""

    nodes: float
    edges: float
    hit_rate: float
    training_s: float
    """CPU seconds of ranks and their workers."""
    storage_s: float
    """CPU seconds of storage servers and their workers."""

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all processes."""
        return self.training_s + self.storage_s


def measure(kinds: Sequence[BatchKind]) -> list[Took]:
    """Take batches of each kind; return what they took.

    Args:
        kinds: All from a graph store or none; there, those of a graph stand together.

    Raises:
        PeerError: A process ended, or did not go on.
    """
    num_servers = RANKS if kinds[0].from_store else 0
    with (
        tempfile.TemporaryDirectory() as folder,
        _processes(kinds, num_servers, folder) as pipes,
    ):
        ranks = pipes[num_servers:]
        return [_measure_one(ranks, _pids_of(pipes), num_servers, kind.counted) for kind in kinds]


def _measure_one(ranks: "list[_Process]", pids: list[int], num_servers: int, counted: int) -> Took:
    # Processor time is counted while all ranks stand still at a word of theirs: workers that are
    # ahead then are as far ahead as at the end, so what is under way cancels.
    _hear(ranks)  # each has had its warm-up
    before = [cpu_s_below(pid) for pid in pids]
    for rank in ranks:
        rank.pipe.send("go on")
    found = _hear(ranks)
    spent = [cpu_s_below(pid) - was for pid, was in zip(pids, before, strict=True)]
    for rank in ranks:
        rank.pipe.send("go on")
    nodes, edges, hits = (sum(column) / len(found) for column in zip(*found, strict=True))
    batches = len(ranks) * counted
    training, storage = sum(spent[num_servers:]) / batches, sum(spent[:num_servers]) / batches
    return Took(nodes / counted, edges / counted, hits, training, storage)


# --- processes ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Process:
    process: Any
    pipe: Connection


@contextlib.contextmanager
def _processes(
    kinds: Sequence[BatchKind], num_servers: int, folder: str
) -> "Iterator[list[_Process]]":
    """Start servers and ranks; end them, whatever happens."""
    from gigl_loader.transport.addresses import free_port

    # A port of each kind for each graph, chosen here: ranks and servers must know the same ones.
    ports = {kind.root: (free_port(), free_port()) for kind in kinds if kind.from_store}
    started: list[_Process] = []
    try:
        for number in range(num_servers):
            started.append(_start(ForkedProcess, _serve, (number, ports)))
        for rank in range(RANKS):
            args = (rank, list(kinds), ports, folder)
            started.append(_start(ForkedProcess, _train, args))
        # After an error nobody is waited for: `_end` kills, and a rank may wait for one that is
        # gone.
        yield started
        for one in started:
            one.process.join(_WAIT_S)
    finally:
        for one in started:
            _end(one)


def _start(kind: Any, function: Callable[..., None], args: tuple[Any, ...]) -> _Process:
    ours, theirs = multiprocessing.Pipe()
    process = kind(target=_enter, args=(function, theirs, *args))
    process.start()
    theirs.close()  # so that `_hear` sees the end of a process that ends
    return _Process(process, ours)


def _end(one: _Process) -> None:
    one.pipe.close()
    one.process.kill()
    one.process.join()


def _enter(function: Callable[..., None], pipe: Connection, *args: Any) -> None:
    # Over sockets, as between machines; and open ones, since encryption is counted apart.
    os.environ.update(GIGL_LOADER_SAME_MACHINE="0", GIGL_LOADER_INSECURE="1")
    function(pipe, *args)


def _pids_of(processes: Sequence[_Process]) -> list[int]:
    return [one.process.pid for one in processes]


def _hear(ranks: Sequence[_Process]) -> list[Any]:
    """Return what each rank says next.

    Raises:
        PeerError: One ended, or says nothing.
    """
    words = []
    for rank in ranks:
        try:
            if not rank.pipe.poll(_WAIT_S):
                raise PeerError(f"a process of the measurement said nothing for {_WAIT_S:.0f} s")
            words.append(rank.pipe.recv())
        except (EOFError, OSError) as error:
            raise PeerError("a process of the measurement ended early: see above") from error
    return words


def cpu_s_below(pid: int) -> float:
    """Return the CPU seconds so far of a process and of its descendants that live."""
    return sum(used for _, used in _below(pid))


def _below(pid: int) -> list[tuple[int, float]]:
    """Return (pid, CPU seconds) of a process and of its descendants, each after its parent."""
    used: dict[int, float] = {}
    children: dict[int, list[int]] = {}
    for one in map(int, filter(str.isdigit, os.listdir("/proc"))):
        fields = read_stat(one)
        if fields is not None:
            used[one] = (int(fields[11]) + int(fields[12])) / _HZ
            children.setdefault(int(fields[1]), []).append(one)
    found = [pid]
    for one in found:  # which grows meanwhile
        found += children.get(one, [])
    return [(one, used[one]) for one in found if one in used]


def idle() -> tuple[float, ...]:
    """Return what a loader's processes take before there is a graph to speak of.

    They start as users' do, in new interpreters: what is forked shares memory.

    Bytes of the training process, of the supervisor and of a worker, each for itself, and of the
    libraries that they share; then CPU seconds of the same three until the first batch.

    Raises:
        PeerError: They did not start.
    """
    one = _start(multiprocessing.get_context("spawn").Process, _idle, ())
    try:
        _hear([one])
        # While it stands still at its first batch, with all of its processes there. Parents come
        # first, so: training, supervisor, workers.
        pids, seconds = zip(*_below(one.process.pid), strict=True)
        own = [_own_bytes(pid) for pid in pids]
        files = max(_kilobytes(pid, "status", "RssFile") for pid in pids)
        one.pipe.send("go on")
        one.process.join(_WAIT_S)
    finally:
        _end(one)
    training, supervisor, *workers = own
    start_s, supervisor_start_s, *worker_start_s = seconds
    return (
        training, supervisor, sum(workers), 1024 * files,
        start_s, supervisor_start_s, sum(worker_start_s),
    )  # fmt: skip


def _own_bytes(pid: int) -> float:
    # Proportional: what processes share is split among them, so their sum is what the machine has.
    # Files, which are libraries mostly, are counted once, apart.
    found = [_kilobytes(pid, "smaps_rollup", name) for name in ("Pss_Anon", "Pss_Shmem")]
    return 1024 * sum(found)


def _kilobytes(pid: int, file: str, name: str) -> float:
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return float(line.split()[1])
    return 0.0


def _idle(pipe: Connection) -> None:
    import torch
    import torch.distributed as dist
    from torch_geometric.data import Data

    from gigl_loader.dataset.local import DistDataset
    from gigl_loader.loader.neighbor import DistNeighborLoader

    assert dist.is_available(), "what trains has it in memory"
    ring = torch.arange(64)
    data = Data(edge_index=torch.stack([ring, (ring + 1) % 64]), x=torch.ones(64, 1))
    with DistNeighborLoader(DistDataset.from_pyg(data), [1], ring, num_workers=1) as loader:
        next(iter(loader))
        _wait(pipe, "at work")


# --- what they do ---------------------------------------------------------------------------------


def _train(pipe: Connection, rank: int, kinds: list[BatchKind], ports: _Ports, folder: str) -> None:
    import torch.distributed as dist

    from gigl_loader.dataset.local import DistDataset

    if ports:
        _train_from_store(pipe, rank, kinds, ports)
        return
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    for kind in kinds:
        dataset = DistDataset.load(kind.root, rank, verify="off")
        _take(pipe, dataset, dataset.node_ids, kind, rank)
        dist.barrier()
    dist.destroy_process_group()


def _info(ports: tuple[int, ...]) -> Any:
    from gigl_loader.remote.info import GraphStoreInfo

    host, (compute_port, rpc_port) = "127.0.0.1", ports
    return GraphStoreInfo(RANKS, RANKS, 1, host, host, host, 0, 0, compute_port, rpc_port, 0)


def _serve(pipe: Connection, number: int, ports: _Ports) -> None:
    """Serve one graph after the other: what a process imports takes longer than its batches."""
    from gigl_loader.dataset.local import DistDataset
    from gigl_loader.remote.storage_process import init_storage_process

    for root, where in ports.items():
        dataset = DistDataset.load(root, number, verify="off")
        with init_storage_process(
            number, _info(where), dataset, num_jobs=1, host="127.0.0.1"
        ) as process:
            process.wait()


def _train_from_store(pipe: Connection, rank: int, kinds: list[BatchKind], ports: _Ports) -> None:
    from gigl_loader.remote.client import init_compute_process, shutdown_compute_process
    from gigl_loader.remote.dataset import RemoteDistDataset

    os.environ["RANK"] = str(rank)
    for root, where in ports.items():
        info = _info(where)
        init_compute_process(0, info, "gloo")
        for kind in kinds:
            if kind.root == root:
                remote = RemoteDistDataset(info, 0)
                _take(pipe, remote, remote.fetch_node_ids(rank, RANKS), kind, rank)
        shutdown_compute_process()


def _take(pipe: Connection, dataset: Any, ids: Any, kind: BatchKind, rank: int) -> None:
    """Take batches of a kind; tell how large those were that count."""
    import torch

    from gigl_loader.loader.neighbor import DistNeighborLoader

    # of one machine, as these are, each rank takes its share of what it is given
    # Drawn with replacement: epochs are as long as is measured, whatever the graph has.
    wanted = RANKS * kind.taken * kind.batch_size
    generator = torch.Generator().manual_seed(rank)

    def some(one: Any) -> Any:
        drawn = torch.randint(0, max(1, len(one)), (wanted,), generator=generator)
        return one[drawn] if len(one) else one

    seeds = {k: some(one) for k, one in ids.items()} if isinstance(ids, dict) else some(ids)
    with DistNeighborLoader(
        dataset, list(kind.fanouts), seeds, batch_size=kind.batch_size, seed=0, num_workers=1,
        remote_cache=f"{kind.cache:.0%}" if kind.cache else None,
    ) as loader:  # fmt: skip
        batches = iter(loader)
        for _ in range(kind.warm_up):
            next(batches)
        # Hits are of the batches that count; while the cache fills there are fewer.
        _wait(pipe, "at work")
        loader.stats(reset=True)
        nodes = edges = 0
        for _ in range(kind.counted):
            batch = next(batches)
            nodes, edges = nodes + batch.num_nodes, edges + batch.num_edges
        hits = loader.stats()["hit_rate"] or 0.0
        _wait(pipe, (nodes, edges, hits))


def _wait(pipe: Connection, word: Any) -> None:
    """Say something, and wait until all have said theirs."""
    pipe.send(word)
    if not pipe.poll(_WAIT_S):
        raise PeerError("the process that measures is gone")
    pipe.recv()
