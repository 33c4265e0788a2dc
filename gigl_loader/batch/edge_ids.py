"""The answer to `batch.e_id` of a batch without edge ids: an error that names ``with_edge``.

PyG's loaders always have edge ids. Here they cost a quarter of the sampling time and 8 bytes for
each edge, so a loader has them only where edges have values, or on request. A batch stays a plain
`Data` or `HeteroData`; its stores of edges are of a class that differs from PyG's in this error
alone, and a pickle has PyG's.
"""

from typing import Any

from torch_geometric.data import Data, HeteroData, storage

from gigl_loader.errors import UsageError

_NAMES = ("e_id", "edge")
"""PyG's name of edge ids, and GLT's."""


class NoEdgeIdsError(UsageError, AttributeError):
    """A batch has no edge ids; `hasattr` and `getattr` with a default take it as missing."""


def _missing(name: str) -> NoEdgeIdsError:
    return NoEdgeIdsError(
        f"this batch has no {name!r}: edge ids come where edges have features or weights, and "
        "with_edge=True of the loader gives them to all sampled edges"
    )


class EdgeStorage(storage.EdgeStorage):
    """Edges of one type, without ids. PyG's errors show its name, which is therefore PyG's."""

    def __getattr__(self, key: str) -> Any:
        if key in _NAMES and key not in self._mapping:
            raise _missing(key)
        return super().__getattr__(key)

    def __reduce__(self) -> tuple[Any, ...]:
        # PyG's class: whoever reads the file may not have this package.
        return storage.EdgeStorage, (), self.__getstate__()


class GlobalStorage(storage.GlobalStorage):
    """Nodes and edges of a homogeneous batch, without edge ids."""

    def __getattr__(self, key: str) -> Any:
        if key in _NAMES and key not in self._mapping:
            raise _missing(key)
        return super().__getattr__(key)

    def __reduce__(self) -> tuple[Any, ...]:
        return storage.GlobalStorage, (), self.__getstate__()


def answer_for_edge_ids(batch: Data | HeteroData) -> None:
    """Let ``batch.e_id`` raise `NoEdgeIdsError` in the stores that lack it."""
    ours: Any
    if isinstance(batch, Data):
        edges = batch._store
        if type(edges) is storage.GlobalStorage and "e_id" not in edges._mapping:
            ours = batch.__dict__["_store"] = GlobalStorage(_parent=batch)
            ours._mapping = edges._mapping
        return
    for edge_type, edges in batch._edge_store_dict.items():
        # in its dict: a storage answers `in` by a lookup that raises, for each batch
        if type(edges) is storage.EdgeStorage and "e_id" not in edges._mapping:
            ours = batch._edge_store_dict[edge_type] = EdgeStorage(_parent=batch, _key=edge_type)
            ours._mapping = edges._mapping
