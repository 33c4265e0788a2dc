"""The same training in one process: what the distributed run is compared with."""

from collections.abc import Iterator
from typing import Any

import torch
from _links_data import USES
from torch import Tensor
from torch_geometric.data import HeteroData


class MemorySampler:
    """Samples like the loaders, from adjacencies in this process's memory.

    PyG's own samplers need pyg-lib or torch-sparse, which have no wheels for every torch.
    """

    def __init__(self, graph: HeteroData, num_neighbors: list[int], seed: int) -> None:
        self._graph, self._num_neighbors = graph, num_neighbors
        self._draws = torch.Generator().manual_seed(seed)
        self._degrees, self._sources = {}, {}
        for edge_type in graph.edge_types:
            src, dst = graph[edge_type].edge_index
            size = graph[edge_type[2]].num_nodes
            self._degrees[edge_type] = torch.bincount(dst, minlength=size)
            self._sources[edge_type] = src[dst.argsort(stable=True)]

    def links(self, links: Tensor, batch_size: int) -> Iterator[HeteroData]:
        """Yield batches of anchors with all their positives, in random order."""
        anchors = links[0].unique()
        anchors = anchors[torch.randperm(anchors.numel(), generator=self._draws)]
        for chosen in anchors.split(batch_size):
            position = torch.full((self._graph["user"].num_nodes,), -1)
            position[chosen] = torch.arange(chosen.numel())
            mine = links[:, position[links[0]] >= 0]
            batch = self.around({"user": chosen, "item": mine[1].unique()})
            batch["user"].batch_size = chosen.numel()
            columns = torch.searchsorted(mine[1].unique(), mine[1].contiguous())
            batch.y_positive = torch.stack([position[mine[0]], columns])
            yield batch

    def items(self, batch_size: int) -> Iterator[HeteroData]:
        """Yield batches of random items, for ever."""
        count = self._graph["item"].num_nodes
        while True:
            order = torch.randperm(count, generator=self._draws)
            for start in range(0, count - batch_size + 1, batch_size):
                batch = self.around({"item": order[start : start + batch_size]})
                batch["item"].batch_size = batch_size
                yield batch

    def around(self, roots: dict[str, Tensor]) -> HeteroData:
        """Return the sampled neighbourhood of ``roots``, which come first."""
        nodes = {t: roots.get(t, torch.empty(0, dtype=torch.int64)) for t in ("user", "item")}
        position = {t: torch.full((self._graph[t].num_nodes,), -1) for t in nodes}
        for t, ids in nodes.items():
            position[t][ids] = torch.arange(ids.numel())
        frontier = dict(nodes)
        edges: dict[Any, list[Tensor]] = {edge_type: [] for edge_type in self._sources}
        for fanout in self._num_neighbors:
            drawn = {t: self._draw(t, frontier[t[2]], fanout) for t in edges}
            for t in nodes:
                found = torch.cat([src for name, (src, _) in drawn.items() if name[0] == t])
                new = found[position[t][found] < 0].unique()
                position[t][new] = torch.arange(new.numel()) + nodes[t].numel()
                nodes[t], frontier[t] = torch.cat([nodes[t], new]), new
            for name, (src, dst) in drawn.items():
                edges[name].append(torch.stack([position[name[0]][src], position[name[2]][dst]]))
        batch = HeteroData({t: {"n_id": ids} for t, ids in nodes.items()})
        for name, parts in edges.items():
            batch[name].edge_index = torch.cat(parts, dim=1)
        return batch

    def _draw(
        self, edge_type: tuple[str, str, str], nodes: Tensor, fanout: int
    ) -> tuple[Tensor, Tensor]:
        """Return (neighbours, nodes they were drawn for): ``fanout`` of each, without repeats."""
        degrees = self._degrees[edge_type]
        starts = degrees.cumsum(0) - degrees
        count = degrees[nodes]
        row = torch.arange(nodes.numel()).repeat_interleave(count)
        first = count.cumsum(0) - count
        rank = torch.arange(row.numel()) - first[row]
        # by row, and within a row at random: the first ones of each row are the draw
        order = (row + torch.rand(row.numel(), generator=self._draws, dtype=torch.double)).argsort()
        kept = order if fanout < 0 else order[rank < fanout]
        source = self._sources[edge_type][(starts[nodes][row] + rank)[kept]]
        return source, nodes[row[kept]]


class PygSampler:
    """The same by PyG's ``LinkNeighborLoader``; needs pyg-lib or torch-sparse.

    Its batches are of links, not of anchors: the positives of an anchor are spread over them.
    """

    def __init__(self, graph: HeteroData, num_neighbors: list[int], seed: int) -> None:
        torch.manual_seed(seed)
        self._graph, self._num_neighbors = graph, num_neighbors

    def links(self, links: Tensor, batch_size: int) -> Iterator[HeteroData]:
        """Yield as many batches as there are of anchors."""
        from torch_geometric.loader import LinkNeighborLoader

        steps = -(-links[0].unique().numel() // batch_size)
        for batch in LinkNeighborLoader(
            self._graph,
            self._num_neighbors,
            edge_label_index=(USES, links),
            batch_size=-(-links.size(1) // steps),
            shuffle=True,
        ):
            users, items = batch[USES].edge_label_index
            distinct, anchors = users.unique(return_inverse=True)
            batch.anchors, batch.y_positive = distinct, torch.stack([anchors, items])
            batch["user"].batch_size = distinct.numel()
            yield batch

    def items(self, batch_size: int) -> Iterator[HeteroData]:
        """Yield batches of random items, for ever."""
        from torch_geometric.loader import NeighborLoader

        loader = NeighborLoader(
            self._graph,
            self._num_neighbors,
            input_nodes="item",
            batch_size=batch_size,
            shuffle=True,
            drop_last=True,
        )
        while True:
            yield from loader
