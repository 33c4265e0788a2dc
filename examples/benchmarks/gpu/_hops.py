"""Batches of one shape in each hop, so that a model can be trimmed and captured as a CUDA graph.

``pad=`` of a loader puts all padding behind the nodes and edges of a batch. `trim_to_layer` cuts
whole hops from the end, so there each hop needs places of its own, real ones first::

    seeds            hop 1                    hop 2
    | real | dead |  | real      | dead |     | real                  | dead |
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Any

import torch
from torch import Tensor

DEAD = 32
"""Nodes at the end of each hop that are never real: ends of dead edges, which are spread over them
as sums at a single node would wait for each other."""
Sizes = dict[Any, list[int]]
"""By type, a number for each hop."""


@dataclass(frozen=True)
class HopPlaces:
    """Places of a batch, by type and hop.

    Args:
        nodes: By type, places for the seeds and for the nodes that each hop finds.
        edges: By type, places for the edges of each hop.
        dead: By type ``[2, places]`` int64, on the device: dead edges everywhere.
    """

    nodes: Sizes
    edges: Sizes
    dead: dict[Any, Tensor]

    @classmethod
    def for_most(cls, batches: Iterable[Any], device: torch.device) -> "HopPlaces":
        """Return places for a twentieth more than the largest of some batches in each hop."""
        nodes, edges = Sizes(), Sizes()
        for batch in batches:
            _grow(nodes, batch.num_sampled_nodes_dict)
            _grow(edges, batch.num_sampled_edges_dict)
        nodes = {
            name: [seeds] + [_rounded(count * 21 // 20 + DEAD) for count in rest]
            for name, (seeds, *rest) in nodes.items()
        }
        edges = {
            name: [_rounded(count * 21 // 20) for count in counts] for name, counts in edges.items()
        }
        ends = {name: list(accumulate(places)) for name, places in nodes.items()}
        dead = {}
        for relation, places in edges.items():
            source, _, target = relation
            hops = []
            for hop, count in enumerate(places, 1):
                spread = torch.arange(count, device=device) % DEAD + 1
                hops.append(torch.stack([ends[source][hop] - spread, ends[target][hop] - spread]))
            dead[relation] = torch.cat(hops, 1)
        return cls(nodes, edges, dead)

    @property
    def hops(self) -> tuple[Sizes, Sizes]:
        """Counts for `trim_to_layer`."""
        return self.nodes, self.edges

    @property
    def totals(self) -> dict[str, dict[Any, int]]:
        """Places for nodes and for edges, by type."""
        return {
            "nodes": {name: sum(sizes) for name, sizes in self.nodes.items()},
            "edges": {name: sum(sizes) for name, sizes in self.edges.items()},
        }

    def fit(self, batch: Any) -> bool:
        """Return whether each hop of a batch has enough places."""
        room = {
            name: [seeds, *(size - DEAD for size in rest)]
            for name, (seeds, *rest) in self.nodes.items()
        }
        return all(
            count <= size
            for sizes, counts in (
                (room, batch.num_sampled_nodes_dict),
                (self.edges, batch.num_sampled_edges_dict),
            )
            for name in sizes
            for size, count in zip(sizes[name], counts[name], strict=True)
        )

    def placed(self, batch: Any) -> tuple[dict[Any, Tensor], dict[Any, Tensor]]:
        """Return features and edges of a batch that fits, with the nodes at their places."""
        counts = {**batch.num_sampled_nodes_dict, **batch.num_sampled_edges_dict}
        moved = _moved({**self.nodes, **self.edges}, counts, next(iter(self.dead.values())).device)
        x, edges = {}, {}
        for name, sizes in self.nodes.items():
            rows = batch[name].x
            x[name] = rows.new_zeros(sum(sizes), rows.size(1)).index_copy_(0, moved[name], rows)
        for relation, dead in self.dead.items():
            given = batch[relation].edge_index
            ends = [moved[name][row] for name, row in zip(relation[::2], given, strict=True)]
            edges[relation] = dead.clone().index_copy_(1, moved[relation], torch.stack(ends))
        return x, edges


def _moved(sizes: Sizes, counts: Sizes, device: torch.device) -> dict[Any, Tensor]:
    """Return by type ``[n]`` int64, the places of its nodes or edges."""
    ends = [list(accumulate(counts[name])) for name in sizes]
    shifts = [
        [
            place - begin
            for place, begin in zip(_begins(sizes[name]), _begins(counts[name]), strict=True)
        ]
        for name in sizes
    ]
    # One copy for all, from pinned memory: the host waits for a copy from any other.
    flat = torch.tensor(list(chain(*ends, *shifts)))
    if device.type == "cuda":
        flat = flat.pin_memory()
    parts = iter(flat.to(device, non_blocking=True).split([len(one) for one in ends + shifts]))
    ends_there = [next(parts) for _ in ends]
    moved = {}
    for name, end, shift in zip(sizes, ends_there, parts, strict=True):
        at = torch.arange(sum(counts[name]), device=device)
        moved[name] = at + shift[torch.bucketize(at, end, right=True)]
    return moved


def _begins(sizes: list[int]) -> list[int]:
    return [0, *accumulate(sizes)][:-1]


def _grow(most: Sizes, counts: Sizes) -> None:
    for name, by_hop in counts.items():
        most[name] = [max(pair) for pair in zip(most.get(name, by_hop), by_hop, strict=True)]


def _rounded(count: int) -> int:
    return -(-count // 8) * 8
