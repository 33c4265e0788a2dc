"""What chaos runs: graphs, loaders, and who is where. A further case is a line in `CASES`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gigl_loader import (
    DistABLPLoader,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubGraphLoader,
    PPRSamplerOptions,
    partition_graph,
)
from gigl_loader.loader.base import BaseDistLoader

SEEDS = 1000
"""Seeds of an epoch: nodes 0, 1, ... or edges."""
COMMON: dict[str, Any] = {
    "batch_size": 25,
    "shuffle": True,
    "seed": 5,
    "shard": "world",
    "max_restarts": 1000,
}
TIMES = "time"
_DEGREE = 8


def _edges(nodes: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(nodes, (2, _DEGREE * nodes), generator=generator)


def _plain(nodes: int) -> Data:
    features = torch.rand(nodes, 16, generator=torch.Generator().manual_seed(1))
    times = torch.arange(nodes) * 7 % nodes
    return Data(x=features, edge_index=_edges(nodes, 2), **{TIMES: times})


def _typed(nodes: int) -> HeteroData:
    graph = HeteroData()
    for seed, name in enumerate(("user", "item")):
        generator = torch.Generator().manual_seed(seed)
        graph[name].x = torch.rand(nodes, 8 + seed, generator=generator)
    graph["user", "buys", "item"].edge_index = _edges(nodes, 3)
    graph["item", "bought_by", "user"].edge_index = _edges(nodes, 3).flip(0)
    graph["user", "knows", "user"].edge_index = _edges(nodes, 4)
    return graph


def write(graph: str, nodes: int, partitions: int, root: Path) -> None:
    """Write the partitions of a graph that a `Recipe` names."""
    common: dict[str, Any] = {"progress": False}
    if graph == "typed":
        partition_graph(_typed(nodes), partitions, root, **common)
    elif graph == "labels":
        labels = torch.stack([torch.arange(nodes), torch.arange(nodes) * 13 % nodes])
        pair = (labels, labels.roll(1, 1))
        partition_graph(_plain(nodes), partitions, root, supervision=pair, **common)
    else:
        partition_graph(_plain(nodes), partitions, root, time_attr=TIMES, **common)


def _nodes(dataset: Any, remote: bool, name: str | None = None) -> Any:
    """Return the seeds, the same in each deployment."""
    if remote:
        ids = dataset.fetch_node_ids(node_type=name)
        ids = {server: part[part < SEEDS] for server, part in ids.items()}
    else:
        ids = torch.arange(SEEDS)
    return ids if name is None else (name, ids)


def neighbours(dataset: Any, remote: bool, **how: Any) -> BaseDistLoader:
    return DistNeighborLoader(dataset, [5, 5], _nodes(dataset, remote), **how)


def typed(dataset: Any, remote: bool, **how: Any) -> BaseDistLoader:
    return DistNeighborLoader(dataset, [4, 4], _nodes(dataset, remote, "user"), **how)


def subgraphs(dataset: Any, remote: bool, **how: Any) -> BaseDistLoader:
    return DistSubGraphLoader(dataset, _nodes(dataset, remote), [4, 3], **how)


def links(dataset: Any, remote: bool, **how: Any) -> BaseDistLoader:
    edges = _edges(SEEDS, 9)[:, :SEEDS]  # ids that every graph has
    return DistLinkNeighborLoader(dataset, [4, 4], edges, neg_sampling="binary", **how)


def anchors(dataset: Any, remote: bool, **how: Any) -> BaseDistLoader:
    if remote:
        given = dataset.fetch_ablp_input(None)
    else:
        (given,) = dataset.node_ids.values()
    return DistABLPLoader(dataset, [4, 3], given, use_label_edge_index_output=True, **how)


def pagerank(dataset: Any, remote: bool, **how: Any) -> BaseDistLoader:
    options = PPRSamplerOptions(alpha=0.3, eps=1e-2, max_ppr_nodes=8)
    return neighbours(dataset, remote, sampler_options=options, **how)


@dataclass(frozen=True)
class Recipe:
    """A loader, and the graph that it reads."""

    loader: Callable[..., BaseDistLoader]
    graph: str = "plain"


RECIPES = {
    "neighbours": Recipe(neighbours),
    "typed": Recipe(typed, "typed"),
    "subgraphs": Recipe(subgraphs),
    "links": Recipe(links),
    "anchors": Recipe(anchors, "labels"),
    "pagerank": Recipe(pagerank),
    "temporal": Recipe(partial(neighbours, time_attr=TIMES)),
    "trees": Recipe(partial(neighbours, disjoint=True)),
}


@dataclass(frozen=True)
class Case:
    """A deployment of a recipe."""

    recipe: str
    servers: int = 0
    """Storage servers; 0: colocated."""
    partitions: int = 1
    worlds: tuple[int, ...] = (1,)
    """Numbers of ranks that it may have; a job starts, and resumes, on any of them."""
    workers: tuple[int, ...] = (1, 2)
    """Numbers of workers to draw from."""
    how: dict[str, Any] = field(default_factory=dict)
    """Further keywords of the loader."""
    mmap: bool = False
    """Of colocated datasets."""
    tls: bool = False
    apart: bool = False
    """No memory is shared: processes talk as if they were on several machines."""
    machines: tuple[int, ...] = ()
    """Machine, 0 or 1, of each server or, colocated, of each rank: network namespaces whose link is
    cut. Ranks of a store are on 0."""
    nodes: int = 2_000
    beside: bool = False
    """A second job takes the same epochs from the same servers; nothing is done to its processes.
    """
    stranger: bool = False
    """A process that is let in attacks the only server meanwhile; see `_chaos_stranger`. Nothing is
    done to the server, which has as much memory, descriptors and threads at the end."""


_CACHE = {"remote_cache": "200KB"}
CASES = {
    "rank": Case("neighbours"),
    "rank-alone": Case("links", workers=(0, 1)),
    "rank-mapped": Case("subgraphs", mmap=True, nodes=10_000),
    "ranks": Case("typed", worlds=(1, 2, 3)),
    "ranks-memory": Case("temporal", partitions=2, worlds=(2,)),
    "ranks-apart": Case("links", partitions=2, worlds=(2,), apart=True, tls=True),
    "ranks-cache": Case("neighbours", partitions=2, worlds=(2,), apart=True, how=_CACHE),
    "ranks-mapped": Case("trees", partitions=2, worlds=(2,), mmap=True, apart=True),
    "ranks-collective": Case(
        "neighbours", partitions=2, worlds=(2,), workers=(1,), how={"exchange": "collective"}
    ),
    "ranks-cut": Case("neighbours", partitions=2, worlds=(2,), machines=(0, 1)),
    "store": Case("neighbours", 2, 2, (1, 2, 3)),
    "store-large": Case("neighbours", 2, 2, (1, 2), nodes=20_000),
    "store-replicas": Case("links", 2, 1, (1, 2)),
    "store-tls": Case("typed", 2, 2, (1, 2), tls=True, apart=True),
    "store-replicas-apart": Case("anchors", 2, 1, (1, 2), apart=True),
    "store-anchors": Case("anchors", 2, 2, (1, 2)),
    "store-subgraphs": Case("subgraphs", 2, 2, (1, 2)),
    "store-pagerank": Case("pagerank", 2, 2, (1,)),
    "store-temporal": Case("temporal", 2, 2, (1, 2)),
    "store-two-jobs": Case("neighbours", 2, 2, (1, 2), beside=True),
    "store-stranger": Case("neighbours", 1, 1, (1, 2), stranger=True),
    "store-trees": Case("trees", 2, 1, (1,)),
    "store-cache": Case("neighbours", 2, 2, (1, 2), apart=True, how=_CACHE),
    "store-cut": Case("neighbours", 2, 2, (1, 2), tls=True, machines=(1, 1)),
    "store-cut-replicas": Case("typed", 2, 1, (1,), machines=(0, 1)),
    "store-cut-links": Case("links", 2, 2, (1,), machines=(0, 1)),
}


def alone(case: Case) -> Case:
    """Return the simplest deployment of a case's loader and graph; its batches are the same."""
    return Case(case.recipe, nodes=case.nodes, workers=(1,))
