"""Rounds of requests to other machines that a batch waits for, with own edges and with all.

Requests that are sent before any of their responses is awaited are one round. Counts alone, so the
machine does not matter; the other partitions respond in this process::

    python examples/benchmarks/network/rounds.py FOLDER      a graph of bench_machines.py --keep
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_machines import FANOUTS

from gigl_loader import DistDataset
from gigl_loader.batch.message import BatchTicket
from gigl_loader.dataset.format.glt_files import count_partitions
from gigl_loader.runtime.memory.segments import array_in, nbytes_of
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.plan import SampleRequest, SamplingPlan
from gigl_loader.sampler.rows.row_exchange import LaterPeers
from gigl_loader.testing import InProcessPeers, as_worker_gets


@dataclass
class Answer:
    """A response that ends a round when it is awaited first."""

    peers: "CountedPeers"
    answer: Any
    round: int
    has_come = False

    def wait(self) -> Any:
        """Return it."""
        self.peers.rounds = max(self.peers.rounds, self.round + 1)
        return self.answer.wait()


class CountedPeers:
    """Responds for all partitions, and counts."""

    rows_later = False

    def __init__(self, views: list[Any]) -> None:
        self._peers, self.rounds = InProcessPeers(views), 0

    def draw(self, partition: int, request: Any) -> Answer:
        """Respond to a request for neighbours."""
        return Answer(self, self._peers.draw(partition, request), self.rounds)

    def rows(self, partition: int, request: Any, out: Any) -> Answer:
        """Respond to a request for rows."""
        return Answer(self, self._peers.rows(partition, request, out), self.rounds)

    @property
    def num_requests(self) -> int:
        """Requests so far."""
        return len(self._peers.asked)


def count(folder: Path, edges: Any, seeds: int, *, with_rows: bool) -> tuple[int, int]:
    """Return the rounds and the requests of one batch of partition 0."""
    parts = [
        DistDataset.load(folder, part, mmap=True, verify="off", edges=edges)
        for part in range(count_partitions(folder))
    ]
    view = as_worker_gets(parts[0].view())
    (node_type,), (edge_type,) = view.num_nodes, view.adjacency
    plan = SamplingPlan(input_type=node_type, fanouts={edge_type: tuple(FANOUTS)}, seed=1)
    peers = CountedPeers([part.view() for part in parts])
    # servers of a graph store leave the rows to the rank that trains
    sampler = NeighborSampler(view, plan, peers if with_rows else LaterPeers(peers))
    ids = np.random.default_rng(1).permutation(parts[0].train_node_ids.numpy())[:seeds]
    for field in sampler.sample(SampleRequest(BatchTicket(0, 0, 0, 0), ids, ids)):
        size = bytearray(nbytes_of(field.dtype, field.shape))
        if with_rows or not hasattr(field.write, "read"):
            field.write(array_in(size, field.dtype, field.shape, 0))
    return peers.rounds, peers.num_requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch-size", type=int, default=1024)
    args = parser.parse_args()
    print("| edges | colocated, with rows | requests | of a server, without rows | requests |")
    print("|---|---|---|---|---|")
    for edges in ("own", "all"):
        cells = [
            number
            for with_rows in (True, False)
            for number in count(args.folder, edges, args.batch_size, with_rows=with_rows)
        ]
        print(f"| {edges} | {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
