"""Loaders of all kinds over two graphs with known bits, and the ways to run them.

Each case names a loader and its keywords; each way (`ONE_PROCESS`, `of_a_rank`, `of_a_client`) runs
it in another deployment. SPEC promises the same batches everywhere, so a case has one digest, kept
in ``runtime.digests.json``: a redesign that changes one bit of one batch is seen.
"""

import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gigl_loader import (
    BaseDistLoader,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    PPRSamplerOptions,
    RemoteDistDataset,
    TokenOptions,
    partition_graph,
)
from gigl_loader.dataset.schema import EdgeDir
from gigl_loader.testing import batch_digest

NODES, EPOCHS = 96, 2
RELATIONS = (("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user"))
COMMON: dict[str, Any] = {"batch_size": 8, "seed": 2026, "shuffle": True, "shard": "world"}

Digests = dict[tuple[int, int], str]
"""By epoch and number of the batch in it."""


def edges(salt: int) -> Tensor:
    """Return edges made by arithmetic alone, with hubs, repeats and loops."""
    number = torch.arange(NODES * 7)
    source = (number * number * 13 + number * salt + 5) % NODES
    target = (number % NODES) * (number // NODES + salt) % NODES
    return torch.stack([source, target])


def rows(count: int, salt: int) -> Tensor:
    number = torch.arange(count)
    return torch.stack([number, number * salt % 17, number * 5 % 31], dim=1).float()


def graph(typed: bool) -> Data | HeteroData:
    """Return the graph: rows tell node and type, weights are 0 for every fourth edge."""
    data = HeteroData() if typed else Data()
    node = torch.arange(NODES)
    for salt, name in enumerate(("item", "user") if typed else ("",), 3):
        store = data[name] if typed else data
        store.x, store.y = rows(NODES, salt), node % 6
        store.time = node * 7 % 50
    for salt, relation in enumerate(RELATIONS if typed else (RELATIONS[2],), 2):
        store = data[relation] if typed else data
        store.edge_index = edges(salt)
        number = torch.arange(store.edge_index.size(1))
        store.edge_attr, store.edge_weight = rows(len(number), salt), (number % 4).float()
        store.time = number * 11 % 50 if typed else data.time
    return data


def pairs() -> Tensor:
    node = torch.arange(NODES)
    return torch.stack([node, (node * 29 + 11) % NODES])


def partition(rank: int, count: int, typed: bool, edge_dir: EdgeDir = "in") -> DistDataset:
    """Return one partition; nodes are dealt out in contiguous blocks."""
    block = torch.arange(NODES) * count // NODES
    book: Any = {"user": block, "item": block} if typed else block
    where = {"partition_book": book, "partition_idx": rank} if count > 1 else {}
    supervised = (pairs(), pairs().roll(3, 1))
    return DistDataset.from_pyg(
        graph(typed),
        edge_dir=edge_dir,
        time_attr="time",
        supervision={RELATIONS[0]: supervised} if typed else supervised,
        **where,
    )


def write_partitions(folder: Path) -> None:
    """Write the partitions of two ranks to disk: of both graphs, in both directions."""
    supervised = (pairs(), pairs().roll(3, 1))
    for typed, edge_dir in itertools.product((False, True), get_args(EdgeDir)):
        partition_graph(
            graph(typed),
            2,
            folder / f"{typed} {edge_dir}",
            edge_dir=edge_dir,
            time_attr="time",
            supervision={RELATIONS[0]: supervised} if typed else supervised,
            progress=False,
        )


def stored_partition(
    rank: int, count: int, folder: Path, typed: bool, edge_dir: EdgeDir = "in"
) -> DistDataset:
    """Return a partition that `write_partitions` wrote, with the edges of the other one."""
    # ranks differ in where edges lie, which no rank has to know
    return DistDataset.load(folder / f"{typed} {edge_dir}", rank, edges="all", mmap=rank == 0)


@dataclass(frozen=True)
class Case:
    """A loader: its class, graph and keywords."""

    kind: Callable[..., BaseDistLoader] = DistNeighborLoader
    typed: bool = False
    edge_dir: EdgeDir = "in"
    how: dict[str, Any] = field(default_factory=dict)
    hops: Any = (4, 3)

    def partition(self, rank: int, count: int) -> DistDataset:
        """Return a partition, with the supervision that only anchors' loaders look at."""
        return partition(rank, count, self.typed, self.edge_dir)

    def seeds(self) -> Any:
        """Return the seeds of the whole job."""
        if self.kind is DistLinkNeighborLoader:
            index = edges(2)[:, :NODES]
            return (RELATIONS[0], index) if self.typed else index
        return ("user", torch.arange(NODES)) if self.typed else torch.arange(NODES)

    def seeds_of(self, remote: RemoteDistDataset) -> Any:
        """Return the same seeds as a graph store gives them, in the same order."""
        if self.kind is DistLinkNeighborLoader:
            return self.seeds()
        node_type = "user" if self.typed else None
        if self.kind is DistABLPLoader:
            kinds: dict[str, Any] = {
                "anchor_node_type": "user",
                "supervision_edge_type": RELATIONS[0],
            }
            return remote.fetch_ablp_input(None, **(kinds if self.typed else {}))
        ids = remote.fetch_node_ids(node_type=node_type)
        return ("user", ids) if self.typed else ids

    def make(self, dataset: Any, seeds: Any, **how: Any) -> BaseDistLoader:
        """Build the loader."""
        given = {**COMMON, **self.how, **how}
        if self.kind is DistSubGraphLoader:
            return self.kind(dataset, seeds, list(self.hops), **given)
        if (
            self.kind is DistABLPLoader
            and self.typed
            and not isinstance(dataset, RemoteDistDataset)
        ):
            given["supervision_edge_type"] = RELATIONS[0]
        return self.kind(dataset, list(self.hops), seeds, **given)


TIME: dict[str, Any] = {"time_attr": "time", "input_time": torch.arange(NODES) % 50}
IN_GROUPS: dict[str, Any] = {"shuffle": "groups", "groups_per_batch": 5}
LINK_TIME: dict[str, Any] = {"time_attr": "time", "edge_label_time": torch.arange(NODES) % 50}
WINDOW: dict[str, Any] = {"time_window": torch.arange(NODES) * 3 % 40}
START_AND_END: dict[str, Any] = {
    "time_attr": "time",
    "input_start_time": torch.arange(NODES) % 50 - torch.arange(NODES) * 3 % 40,
    "input_end_time": torch.arange(NODES) % 50,
}
BY_SEED = ("input_time", "time_window", "input_start_time", "input_end_time")

CASES: dict[str, Case] = {
    "nodes": Case(),
    "nodes, out": Case(edge_dir="out"),
    "nodes, all neighbours": Case(hops=(-1, 2)),
    "nodes, weighted": Case(how={"with_weight": True}),
    "nodes, replace": Case(how={"replace": True}),
    "nodes, labor": Case(how={"sampling_method": "labor"}),
    "nodes, disjoint": Case(how={"disjoint": True}),
    "nodes, by time": Case(how=TIME),
    "nodes, last by time": Case(how={**TIME, "temporal_strategy": "last"}),
    "nodes, bidirectional": Case(how={"subgraph_type": "bidirectional"}),
    "nodes, in the order of input": Case(
        how={"shuffle": False, "drop_last": True, "batch_size": 7}
    ),
    "nodes, ppr": Case(how={"sampler_options": PPRSamplerOptions(max_ppr_nodes=9)}),
    "typed nodes": Case(typed=True),
    "typed nodes, out": Case(typed=True, edge_dir="out"),
    "typed nodes, weighted": Case(typed=True, how={"with_weight": True}),
    "typed nodes, disjoint": Case(typed=True, how={"disjoint": True}),
    "typed nodes, labor": Case(typed=True, how={"sampling_method": "labor"}),
    "subgraphs": Case(kind=DistSubGraphLoader),
    "typed subgraphs": Case(kind=DistSubGraphLoader, typed=True),
    "links": Case(kind=DistLinkNeighborLoader),
    "links, binary": Case(kind=DistLinkNeighborLoader, how={"neg_sampling": "binary"}),
    "links, strict": Case(
        kind=DistLinkNeighborLoader, how={"neg_sampling": "binary", "strict": True}
    ),
    "links, triplet": Case(kind=DistLinkNeighborLoader, how={"neg_sampling": "triplet"}),
    "links, by time": Case(kind=DistLinkNeighborLoader, how={**LINK_TIME, "disjoint": True}),
    "typed links, binary": Case(
        kind=DistLinkNeighborLoader, typed=True, how={"neg_sampling": "binary"}
    ),
    "anchors": Case(kind=DistABLPLoader),
    "typed anchors": Case(kind=DistABLPLoader, typed=True),
    "nodes, in groups": Case(how={**IN_GROUPS, "seed_groups": "time"}),
    "typed links, in groups": Case(
        kind=DistLinkNeighborLoader,
        typed=True,
        how={**IN_GROUPS, "seed_groups": {"user": torch.arange(NODES) * 5 % 13}},
    ),
    "anchors, in groups": Case(kind=DistABLPLoader, how={**IN_GROUPS, "seed_groups": "time"}),
    "nodes, tokens": Case(
        how={"tokens": TokenOptions(12, pairs=True, walk_length=2, with_degree=True)}
    ),
    "nodes, tokens by time": Case(
        how={**TIME, "tokens": TokenOptions(9, order="time", fill="repeat", pairs=True)}
    ),
    "typed nodes, tokens, out": Case(
        typed=True, edge_dir="out", how={"tokens": TokenOptions(14, order="random", pairs=True)}
    ),
    "links, tokens": Case(
        kind=DistLinkNeighborLoader,
        how={"neg_sampling": "binary", "tokens": TokenOptions(10, layout="varlen")},
    ),
    "nodes, ppr tokens": Case(
        how={
            "sampler_options": PPRSamplerOptions(max_ppr_nodes=9),
            "tokens": TokenOptions(8, order="score", pairs=True),
        }
    ),
    "typed anchors, tokens": Case(
        kind=DistABLPLoader,
        typed=True,
        how={"tokens": TokenOptions(10, order="random", fill="repeat", walk_length=3)},
    ),
    "nodes, windows": Case(how={**TIME, **WINDOW, "temporal_strategy": "last"}),
    "nodes, start and end, tokens": Case(how={**START_AND_END, "tokens": TokenOptions(9)}),
    "links, windows": Case(
        kind=DistLinkNeighborLoader, how={**LINK_TIME, **WINDOW, "neg_sampling": "binary"}
    ),
    "anchors, start and end": Case(kind=DistABLPLoader, how=START_AND_END),
    "nodes, adaptive by time": Case(
        how={**TIME, **WINDOW, "temporal_strategy": "last", "adaptive_fanout": True}, hops=(4, 3, 2)
    ),
    "typed nodes, adaptive, weighted": Case(
        typed=True,
        how={"disjoint": True, "adaptive_fanout": True, "with_weight": True},
        hops=(9, 2, 1),
    ),
    "typed links, adaptive, replace": Case(
        kind=DistLinkNeighborLoader,
        typed=True,
        how={"disjoint": True, "adaptive_fanout": True, "replace": True},
    ),
}


def digests(loader: BaseDistLoader, rank: int = 0, world_size: int = 1) -> Digests:
    """Return the digest of each of this rank's batches."""
    return {
        (epoch, step * world_size + rank): batch_digest(batch)
        for epoch in range(EPOCHS)
        for step, batch in enumerate(loader)
    }


def digest_of(found: Digests) -> str:
    """Return one digest of all batches."""
    assert sorted(found) == [
        (epoch, number) for epoch in range(EPOCHS) for number in range(len(found) // EPOCHS)
    ]
    return hashlib.sha256("".join(found[key] for key in sorted(found)).encode()).hexdigest()


def in_one_process(case: Case, dataset: DistDataset, **how: Any) -> str:
    """Run a case in a process that is alone."""
    with case.make(dataset, case.seeds(), **how) as loader:
        return digest_of(digests(loader))


def write(folder: Path, name: str, rank: int, found: Digests) -> None:
    file = folder / f"{rank}.{name}.json"
    file.write_text(json.dumps([[*key, digest] for key, digest in found.items()]))


def read(folder: Path, name: str) -> str:
    """Return the digest of what all ranks wrote."""
    found: Digests = {}
    for file in folder.glob(f"*.{name}.json"):
        for epoch, number, digest in json.loads(file.read_text()):
            assert (epoch, number) not in found, "a batch came twice"
            found[epoch, number] = digest
    return digest_of(found)


def of_a_rank(
    rank: int,
    size: int,
    folder: Path,
    names: list[str],
    how: dict[str, Any],
    stored: Path | None = None,
) -> None:
    """Run cases on one of several ranks, each with a partition of its own.

    ``stored``: where `write_partitions` wrote them; each rank then has all edges.
    """
    for name in names:
        case = CASES[name]
        dataset = (
            case.partition(rank, size)
            if stored is None
            else stored_partition(rank, size, stored, case.typed, case.edge_dir)
        )
        with case.make(dataset, case.seeds(), **how) as loader:
            write(folder, name, rank, digests(loader, rank, size))


def plain_partition(rank: int, servers: int) -> DistDataset:
    return partition(rank, servers, typed=False)


def typed_partition(rank: int, servers: int) -> DistDataset:
    return partition(rank, servers, typed=True)


def of_a_client(info: Any, rank: int, folder: Path, names: list[str], how: dict[str, Any]) -> None:
    """Run cases on the servers of a graph store."""
    size = info.num_processes_per_compute
    for name in names:
        case = CASES[name]
        remote = RemoteDistDataset(info, rank)
        seeds, own = case.seeds_of(remote), dict(how)
        if isinstance(seeds, dict):  # times go with the ids of each server
            by_server = {server: getattr(ids, "anchor_nodes", ids) for server, ids in seeds.items()}
            own |= {
                name: {server: case.how[name][ids] for server, ids in by_server.items()}
                for name in set(BY_SEED) & case.how.keys()
            }
        with case.make(remote, seeds, **own) as loader:
            write(folder, name, rank, digests(loader, rank, size))
