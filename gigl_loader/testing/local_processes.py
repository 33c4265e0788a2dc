"""Processes on this machine: ranks of a process group, and others whose tracebacks are kept."""

import contextlib
import os
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.errors import UsageError
from gigl_loader.graph_store.client.compute_process import (
    init_compute_process,
    shutdown_compute_process,
)
from gigl_loader.graph_store.server.storage_process import init_storage_process
from gigl_loader.graph_store.wire.graph_store_info import GraphStoreInfo
from gigl_loader.runtime.processes import ForkedProcess
from gigl_loader.runtime.ranks.collectives import end_group
from gigl_loader.testing.this_machine import free_port, wait_until

if TYPE_CHECKING:
    from gigl_loader import BaseDistLoader


class RankFailed(AssertionError):
    """A rank raised, was killed, or did not end in time."""


class Processes:
    """Processes whose tracebacks are kept; `running_processes` ends them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.all: list[ForkedProcess] = []

    def start(self, function: Callable[..., None], *args: Any, name: str = "") -> ForkedProcess:
        """Call ``function(*args)`` in a process of its own; ``name`` is its name in tracebacks."""
        # a file: a process killed later has already written it, and there is no pipe to read
        note = self._folder / f"{len(self.all)}.txt"
        name = name or f"{function.__name__} {args[1:2]}"
        # not a daemon: daemons may not start sampling workers of their own
        process = ForkedProcess(target=_entry, args=(function, args, name, note), name=name)
        self.all.append(process)
        process.start()
        return process

    def join(
        self,
        processes: Sequence[ForkedProcess],
        timeout_s: float = 400.0,
        *,
        in_all: bool = False,
        may_die: Collection[ForkedProcess] = (),
    ) -> None:
        """Wait until all have ended.

        Args:
            processes: The processes.
            timeout_s: Longest time without an end of one: many processes on a slow machine take
                long.
            in_all: The time is for all of them together.
            may_die: Processes that may end by a signal without a failure.

        Raises:
            RankFailed: One failed, which is raised at once, or did not end; with the tracebacks.
        """
        left: dict[Any, ForkedProcess] = {process.sentinel: process for process in processes}
        deadline = time.monotonic() + timeout_s
        while left:
            done = wait(list(left), max(0.0, deadline - time.monotonic()))
            if not done:
                names = ", ".join(process.name for process in left.values())
                raise RankFailed(f"still running after {timeout_s:g} s: {names}\n{self.notes()}")
            for sentinel in done:
                left.pop(sentinel).join()
            codes = [(process, process.exitcode) for process in processes]
            # all of them, not only those seen first: one may have failed because another ended
            failed = [
                f"{process.name}: exit code {code}"
                for process, code in codes
                if code and not (code < 0 and process in may_die)
            ]
            if failed:
                raise RankFailed(f"{', '.join(failed)}\n{self.notes()}")
            if not in_all:
                deadline = time.monotonic() + timeout_s

    def notes(self) -> str:
        """Return the tracebacks of the processes that raised."""
        return "".join(note.read_text() for note in sorted(self._folder.glob("*.txt")))


@contextlib.contextmanager
def running_processes(folder: Path) -> Iterator[Processes]:
    """Give a `Processes`; none of its processes outlives the ``with`` block.

    Args:
        folder: An empty one, for tracebacks.
    """
    started = Processes(folder)
    try:
        yield started
    finally:
        for process in started.all:
            if process.pid is not None:
                # SIGKILL: a process that hangs in C code reacts to no other signal; its children
                # watch for its end
                process.kill()
                process.join()


def _entry(function: Callable[..., None], args: tuple[Any, ...], name: str, note: Path) -> None:
    try:
        function(*args)
    except BaseException:
        note.write_text(f"--- {name} ---\n{traceback.format_exc()}")
        raise SystemExit(1) from None


def run_ranks(
    fn: Callable[..., None],
    *args: Any,
    world_size: int,
    tmp_path: Path,
    timeout: float = 400.0,
    may_die: Collection[int] = (),
) -> None:
    """Call ``fn(rank, world_size, *args)`` on the ranks of a gloo group; no port is used.

    Each rank is a separate process, with nothing of this one but the environment and the arguments.
    It is forked from multiprocessing's fork server, which imports this package once and ends with
    this process: only the first call waits for imports.

    Args:
        fn: A function of a module, so that the ranks can import it.
        args: Further arguments of ``fn``; picklable.
        world_size: Number of ranks.
        tmp_path: An empty folder, for the group's store and the ranks' tracebacks.
        timeout: Seconds for all of it.
        may_die: Ranks whose end by a signal is no failure, since the test is about it.

    Raises:
        RankFailed: As soon as a rank raises or is killed, with the tracebacks; or after
            ``timeout`` seconds. No rank is left.
    """
    with running_processes(tmp_path) as started:
        ranks = [
            started.start(_rank, fn, rank, world_size, tmp_path, timeout, args, name=f"rank {rank}")
            for rank in range(world_size)
        ]
        started.join(ranks, timeout, in_all=True, may_die=[ranks[rank] for rank in may_die])


def _rank(
    fn: Callable[..., None], rank: int, size: int, tmp_path: Path, limit_s: float, args: Any
) -> None:
    limit = timedelta(seconds=limit_s)
    store = dist.FileStore(f"{tmp_path}/store", size)  # type: ignore[attr-defined]  # torch does not declare it
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    # Gloo connects all pairs: a rank may finish ``fn`` and end before its peers have connected, and
    # they would fail instead of waiting.
    meet_in_store("connected")
    fn(rank, size, *args)
    end_group()


@contextlib.contextmanager
def one_rank(tmp_path: Path) -> Iterator[None]:
    """Let this process be the only rank of a gloo group inside a ``with`` block; no port is used.

    Args:
        tmp_path: An empty folder for the group's store.
    """
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        yield
    finally:
        end_group()


def meet_in_store(name: str, ranks: Collection[int] | None = None) -> None:
    """Return once these ranks have called this; none of the group's connections is used.

    For tests in which a rank dies next. `dist.barrier` may be over for that rank while its bytes
    are still on their way to another, which would fail there, and not where the test expects it.

    Args:
        name: Name of this barrier; used once.
        ranks: The ranks that meet, this one among them; None: all of the group.
    """
    store = dist.distributed_c10d._get_default_store()
    store.set(f"{name}/{dist.get_rank()}", "")
    everyone = range(dist.get_world_size()) if ranks is None else ranks
    store.wait([f"{name}/{rank}" for rank in everyone])


def worker_pid(loader: "BaseDistLoader", number: int = 0, *, former: int | None = None) -> int:
    """Return the process id of a sampling worker, once it has one.

    Args:
        loader: A loader that samples in worker processes of its own.
        number: The index of the worker.
        former: The process id of its predecessor, which is ignored.

    Raises:
        AssertionError: It was not started in time.
        UsageError: The loader has no such workers.
    """
    producer: Any = getattr(loader, "_mp_producer", None)
    pids: list[int] = []
    # num_workers=0, or samplers on a graph store
    if not hasattr(producer, "pids"):
        raise UsageError("this loader has no sampling workers of its own")

    def started() -> bool:
        pid = producer.pids[number]
        # None during a replacement
        if pid is not None and pid != former:
            pids.append(pid)
        return bool(pids)

    wait_until(started, f"worker {number} has been started")
    return pids[0]


_HOST = "127.0.0.1"
# below the 400 s after which processes are killed: the waiting one names its condition
_JOIN_TIMEOUT_S = 300.0

MakePartition = Callable[[int, int], DistDataset]


def store_info(servers: int, clients: int, **changes: Any) -> GraphStoreInfo:
    """Return the description of a cluster on this machine: one compute machine, free ports.

    Args:
        servers: Storage servers.
        clients: Compute processes.
        changes: Fields of `GraphStoreInfo` that differ.
    """
    # fields of GiGL that nothing here reads
    unused = ("cluster_master_port", "storage_cluster_master_port", "rpc_wait_port")
    hosts = ("cluster_master_ip", "storage_cluster_master_ip", "compute_cluster_master_ip")
    used = ("compute_cluster_master_port", "rpc_master_port")
    values: dict[str, Any] = {
        "num_storage_nodes": servers,
        "num_compute_nodes": 1,
        "num_processes_per_compute": clients,
        **dict.fromkeys(hosts, _HOST),
        **dict.fromkeys(unused, 0),
        **{name: free_port() for name in used if name not in changes},
    }
    return GraphStoreInfo(**{**values, **changes})


def run_cluster(
    client: Callable[..., None],
    *args: Any,
    dataset: MakePartition,
    tmp_path: Path,
    servers: int = 2,
    clients: int = 2,
    timeout: float = 400.0,
    allow_samplers: Sequence[str] = (),
) -> None:
    """Call ``client(info, rank, *args)`` on each compute process of a cluster on this machine.

    Args:
        client: A function of a module, called with the `GraphStoreInfo` and the compute rank.
        args: Further arguments of ``client``; picklable.
        dataset: A function of a module: ``dataset(rank, servers)`` returns that server's data.
        tmp_path: An empty folder, for tracebacks.
        servers: Storage servers.
        clients: Compute processes.
        timeout: Longest seconds without the end of a process.
        allow_samplers: Packages, modules or classes of samplers that clients may name.

    Raises:
        AssertionError: A process failed, or does not end. None is left.
    """
    info = store_info(servers, clients)
    serving = partial(serve, allow_samplers=tuple(allow_samplers))
    with running_processes(tmp_path) as started:
        roles = [
            # servers first: clients wait for them, and would only retry
            started.start(serving, info, rank, dataset, name=f"server {rank}")
            for rank in range(servers)
        ]
        roles += [started.start(compute, info, rank, client, *args) for rank in range(clients)]
        started.join(roles, timeout)


def serve(
    info: GraphStoreInfo, rank: int, dataset: MakePartition, num_jobs: int | None = 1, **how: Any
) -> None:
    """Be a storage server until its jobs have ended; ``how`` is for `init_storage_process`."""
    partition = dataset(rank, info.num_storage_nodes)
    with init_storage_process(rank, info, partition, num_jobs=num_jobs, **how) as server:
        server.wait()


def compute(
    info: GraphStoreInfo, rank: int, client: Callable[..., None], *args: Any, **how: Any
) -> None:
    """Be a compute process during ``client(info, rank, *args)``.

    ``how`` is for `init_compute_process`.
    """
    os.environ["RANK"] = "0"  # of the only compute machine
    init_compute_process(rank, info, "gloo", **{"timeout": _JOIN_TIMEOUT_S, **how})
    try:
        client(info, rank, *args)
    finally:
        shutdown_compute_process()
        shutdown_compute_process()  # again: nothing is left to do
