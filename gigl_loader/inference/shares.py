"""Which rank computes which node."""

import torch
from torch import Tensor

from gigl_loader.dataset._build import owned_ids
from gigl_loader.dataset.schema import NodeType
from gigl_loader.dataset.view import Book, PartitionView
from gigl_loader.errors import ConfigError
from gigl_loader.exchange import RankExchange

_NO_ID = torch.iinfo(torch.int64).max


class NodeShares:
    """The nodes that each rank computes: its partition's, shared by the ranks that hold it.

    A share is a contiguous piece of the partition's ids, as the loaders cut seeds.

    Args:
        view: This rank's partition.
        exchange: All ranks that hold the graph.

    Raises:
        ConfigError: The ranks do not hold all partitions, on all ranks alike.
    """

    def __init__(self, view: PartitionView, exchange: RankExchange) -> None:
        held = exchange.gather((view.partition_idx, view.num_partitions), tuple[int, int])
        _check_held(held)
        self.rank, self.size = exchange.rank, exchange.size
        self._books: dict[NodeType, Book] = view.node_books
        # by partition, the ranks that hold it, ascending
        self._ranks = [[r for r, (p, _) in enumerate(held) if p == q] for q in range(held[0][1])]
        mates = self._ranks[view.partition_idx]
        self.own: dict[NodeType, Tensor] = {}
        """Global ids of the nodes that this rank computes, ascending, by type."""
        for name, count in view.num_nodes.items():
            book = view.node_books.get(name)
            ids = torch.arange(count) if book is None else owned_ids(book, view.partition_idx)
            self.own[name] = ids.tensor_split(len(mates))[mates.index(exchange.rank)]
        # Shares are contiguous, so that the first id of each tells them apart. Empty ones come
        # last, as tensor_split cuts; a start above every id keeps them from being anybody's.
        starts = {name: int(ids[0]) if len(ids) else _NO_ID for name, ids in self.own.items()}
        everyone = exchange.gather(starts, dict[str, int])
        self._starts = {
            name: [torch.tensor([everyone[r][name] for r in ranks]) for ranks in self._ranks]
            for name in starts
        }

    def owner(self, node_type: NodeType, ids: Tensor) -> Tensor:
        """Return the rank that computes each of ``ids``: ``[n]`` int64, as they are."""
        book = self._books.get(node_type)
        parts = torch.zeros_like(ids) if book is None else book.owner(ids)
        # one rank for each partition, as is usual: the owner's partition says it all
        if all(len(ranks) == 1 for ranks in self._ranks):
            return torch.tensor([ranks[0] for ranks in self._ranks])[parts]
        found = torch.empty_like(ids)
        for part, ranks in enumerate(self._ranks):
            mine = parts == part
            # the last share that starts at or before the id
            at = torch.searchsorted(self._starts[node_type][part], ids[mine], right=True) - 1
            found[mine] = torch.tensor(ranks)[at]
        return found


def _check_held(held: list[tuple[int, int]]) -> None:
    counts = {count for _, count in held}
    # computed of what all ranks sent, so that all of them raise, and none waits for the others
    missing = set(range(max(counts))) - {part for part, _ in held}
    if len(counts) > 1 or missing:
        raise ConfigError(
            f"the {len(held)} ranks hold these partitions (index, of how many): {held}; together "
            "they have to hold all partitions of one graph"
            + (f", missing are {sorted(missing)}" if missing else "")
        )
