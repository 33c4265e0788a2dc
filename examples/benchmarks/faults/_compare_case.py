"""One cell of the table of `compare.py`: ``_compare_case.py CONTESTANT ROW`` prints JSON lines.

The graph is the same for all: each node has an edge from each of the ten nodes after it.
"""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import signal
import sys
import time
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

NODES, DEGREE, FANOUT, BATCH = 4_000, 10, 5, 10
AFTER = 5
"""Batches before the fault, of 400."""


def edges() -> torch.Tensor:
    """Return ``[2, num_edges]``."""
    target = torch.arange(NODES).repeat_interleave(DEGREE)
    return torch.stack([(target + torch.arange(1, DEGREE + 1).repeat(NODES)) % NODES, target])


def say(**what: Any) -> None:
    """Print a line that `compare.py` reads."""
    print(json.dumps(what), flush=True)


# --- contestants: a loader with so many workers, and what a batch says ---------------------------


@contextlib.contextmanager
def ours(workers: int) -> Iterator[Any]:
    """Give a loader of gigl_loader."""
    from torch_geometric.data import Data

    from gigl_loader import DistDataset, DistNeighborLoader

    dataset = DistDataset.from_pyg(Data(x=torch.zeros(NODES, 1), edge_index=edges()))
    with DistNeighborLoader(
        dataset, [FANOUT], torch.arange(NODES), batch_size=BATCH, num_workers=workers, seed=0
    ) as loader:
        yield loader


@contextlib.contextmanager
def pyg(workers: int) -> Iterator[Any]:
    """Give PyG's loader, seeded as its users do."""
    from torch_geometric import typing
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader, NodeLoader

    torch.manual_seed(0)
    data = Data(x=torch.zeros(NODES, 1), edge_index=edges())
    how: dict[str, Any] = {"batch_size": BATCH, "num_workers": workers}
    if typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE:
        yield NeighborLoader(data, [FANOUT], **how)
    else:
        yield NodeLoader(data, _sampler_of_pyg(), **how)


def _sampler_of_pyg() -> Any:
    """Return a sampler in Python for PyG's loader, where its native libraries are not installed.

    `NeighborLoader` is a `NodeLoader` with a sampler: all but the draw is the same.
    """
    from torch_geometric.sampler import BaseSampler, NodeSamplerInput, SamplerOutput

    class Draw(BaseSampler):
        def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput:
            seeds = index.node
            steps = torch.stack([torch.randperm(DEGREE)[:FANOUT] for _ in seeds]) + 1
            drawn = ((seeds.view(-1, 1) + steps) % NODES).flatten()
            others = drawn.unique()
            nodes = torch.cat([seeds, others[~torch.isin(others, seeds)]])
            place = torch.empty(NODES, dtype=torch.int64)
            place[nodes] = torch.arange(len(nodes))
            targets = torch.arange(len(seeds)).repeat_interleave(FANOUT)
            found = SamplerOutput(nodes, place[drawn], targets, None)
            found.metadata = (index.input_id, index.time)
            return found

        def sample_from_edges(self, index: Any, neg_sampling: Any = None) -> Any:
            raise NotImplementedError

    return Draw()


@contextlib.contextmanager
def glt(workers: int) -> Iterator[Any]:
    """Give graphlearn-torch's loader, as it documents its use."""
    found = _import_glt()
    import torch.distributed as dist

    address, port = f"tcp://127.0.0.1:{_free_port()}", _free_port()
    dist.init_process_group("gloo", init_method=address, rank=0, world_size=1)
    found.distributed.init_worker_group(1, 0, "compare")
    source, target = edges()
    ends = torch.bincount(target, minlength=NODES).cumsum(0)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), ends])
    columns = (source[target.argsort(stable=True)], indptr)  # CSC: no conversion by torch_sparse
    topology = found.data.Topology(columns, input_layout="CSC", layout="CSC")
    dataset = found.distributed.DistDataset(
        num_partitions=1,
        partition_idx=0,
        graph_partition=found.data.Graph(topology, "CPU"),
        node_feature_partition=found.data.Feature(torch.zeros(NODES, 1), with_gpu=False),
        node_pb=torch.zeros(NODES, dtype=torch.uint8),
        edge_pb=torch.zeros(NODES * DEGREE, dtype=torch.uint8),
        edge_dir="in",
    )
    options = found.distributed.MpDistSamplingWorkerOptions(
        num_workers=workers,
        worker_devices=[torch.device("cpu")] * workers,
        worker_concurrency=4,
        master_addr="127.0.0.1",
        master_port=port,
        channel_size="64MB",
    )
    loader = found.distributed.DistNeighborLoader(
        dataset,
        [FANOUT],
        torch.arange(NODES),
        batch_size=BATCH,
        edge_dir="in",
        collect_features=True,
        to_device=torch.device("cpu"),
        random_seed=0,
        worker_options=options,
    )
    yield loader
    loader.shutdown()


def _import_glt() -> Any:
    """Import graphlearn-torch on a machine without a GPU, which its default arguments name."""
    real = torch.device

    class Device:
        def __new__(cls, *args: Any) -> Any:
            return real("cuda", *args) if isinstance(args[0], int) else real(*args)

    sys.modules.setdefault("torch_sparse", types.ModuleType("torch_sparse"))  # unused
    torch.device = Device  # type: ignore[misc, assignment]  # for the import alone
    try:
        import graphlearn_torch
    finally:
        torch.device = real  # type: ignore[misc]  # for the import alone
    return graphlearn_torch


def _free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


CONTESTANTS = {"ours": ours, "pyg": pyg, "glt": glt}
PACKAGES = {"ours": "gigl_loader", "pyg": "torch_geometric", "glt": "graphlearn_torch"}


def seeds_of(batch: Any) -> list[int]:
    """Return the ids of a batch's seeds."""
    nodes = batch.node if "node" in batch else batch.n_id
    return [int(one) for one in nodes[:BATCH]]


def digest_of(batch: Any) -> str:
    """Return what a batch holds: its nodes, and its edges by global ids."""
    nodes = batch.node if "node" in batch else batch.n_id
    text = nodes.numpy().tobytes() + nodes[batch.edge_index].numpy().tobytes()
    return hashlib.sha256(text).hexdigest()


# --- rows ----------------------------------------------------------------------------------------


def sampling_workers() -> list[int]:
    """Return this process's descendants that have none themselves, but for Python's helpers."""
    found, new = [], [os.getpid()]
    while new:
        pid = new.pop()
        below: list[int] = []
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            below += map(int, file.read_text().split())
        command = Path(f"/proc/{pid}/cmdline").read_text()
        if not below and pid != os.getpid() and "resource_tracker" not in command:
            found.append(pid)
        new += below
    return sorted(found)


def killed(make: Any) -> str:
    """Kill a worker in the middle of an epoch."""
    seen: Counter[int] = Counter()
    with make(2) as loader:
        try:
            for number, batch in enumerate(loader):
                seen.update(seeds_of(batch))
                if number == AFTER:
                    os.kill(sampling_workers()[0], signal.SIGKILL)
                    say(fault=True)
                time.sleep(0.005)  # a training step
        except ImportError:
            raise
        except Exception as error:
            return f"an error: {type(error).__name__}: {str(error).splitlines()[0][:80]}"
    if seen == Counter(range(NODES)):
        return "the epoch is complete, each seed once"
    return f"the epoch **ends** with {len(seen)} of {NODES} seeds"


def broken_off(make: Any) -> str:
    """Leave an epoch, and take the next one."""
    with make(2) as loader:
        for number, _ in enumerate(loader):
            if number == AFTER:
                break
        say(fault=True)
        time.sleep(1)  # whatever is left over has time to arrive
        seen = Counter(one for batch in loader for one in seeds_of(batch))
    if seen == Counter(range(NODES)):
        return "the next epoch is clean"
    twice = sum(count > 1 for count in seen.values())
    return f"in the next epoch {twice} seeds **repeat** and {NODES - len(seen)} are missing"


def resumed(make: Any) -> str:
    """Go on from a state in another loader."""
    with make(2) as loader:
        if not hasattr(loader, "state_dict"):
            return "no"
        batches = iter(loader)
        for _ in range(AFTER):
            next(batches)
        state = loader.state_dict()
        left = [digest_of(batch) for batch in batches]
    with make(2) as loader:
        loader.load_state_dict(state)
        same = left == [digest_of(batch) for batch in loader]
    return "yes, the same batches" if same else "yes, other batches"


def same(make: Any) -> str:
    """Compare an epoch of one worker with that of three."""
    with make(1) as loader:
        one = [digest_of(batch) for batch in loader]
    with make(3) as loader:
        return "yes" if one == [digest_of(batch) for batch in loader] else "no"


def neighbours(make: Any) -> str:
    """See whether a neighbour of a seed is drawn twice, or too few are."""
    from torch_geometric import typing

    if make is pyg and not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE):
        return "not run: needs pyg-lib or torch-sparse"
    with make(1) as loader:
        for batch in loader:
            pairs = {(int(a), int(b)) for a, b in batch.edge_index.t()}
            if len(pairs) < BATCH * FANOUT:
                return "with replacement"
    return "without replacement"


ROWS = {
    "killed": killed,
    "break": broken_off,
    "resume": resumed,
    "same": same,
    "neighbours": neighbours,
}


def main() -> None:
    contestant, row = sys.argv[1:]
    version = ""
    try:
        version = importlib.metadata.version(PACKAGES[contestant])
        say(version=version)
        outcome = ROWS[row](CONTESTANTS[contestant])
    except ImportError as error:
        outcome = f"not run: {str(error).splitlines()[-1][-100:]}"
        if contestant == "glt":  # its native library names a missing symbol, which says nothing
            outcome = (
                "not run: needs graphlearn-torch and a CUDA build of torch 2.4 to 2.6 "
                "(--python-glt PYTHON)"
            )
    say(version=version, fault=True, outcome=outcome)


if "glt" in sys.argv[1:]:  # also in its spawned workers, which import this file for that
    with contextlib.suppress(ImportError):  # `main` reports it
        _import_glt()

if __name__ == "__main__":
    if sys.argv[1] == "glt":
        torch.multiprocessing.set_start_method("spawn")  # its own objects assume it
    main()
