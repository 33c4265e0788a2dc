"""`Split`: rows of a task as seeds, and the arguments of a loader that they stand for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gigl_loader.dataset.schema import DatasetSchema, EdgeType, NodeType, is_label_edge_type
from gigl_loader.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Split:
    """Rows of a task, as seeds of a loader: ``DistNeighborLoader(dataset, fanout, split)``.

    ``batch[entity].y`` has the targets of the seeds, by ``input_id``, which is the row of `table`.
    ``DistLinkNeighborLoader(dataset, fanout, split)`` takes those of recommendation: each pair of a
    row and one of its destinations is a seed edge, and ``input_id`` is the row.
    """

    task: str
    """Name of the task."""
    name: str
    table: "pa.Table" = field(repr=False)
    """The rows as an Arrow table, as RelBench's ``get_table`` has them."""
    nodes: tuple[NodeType, Tensor]
    """The entities' type, and their ids in the dataset, ``[rows]`` int64."""
    time: Tensor | None
    """``[rows]`` int64, seconds since 1970; None: the task has no times."""
    target: Tensor | None
    """``[rows]`` float64, or int64 of classes, or ``[rows, labels]``; None: masked, or there are
    destinations."""
    pairs: tuple[NodeType, Tensor] | None = None
    """For recommendation: the destinations' type, and ``[2, pairs]`` int64, rows and ids of their
    destinations; None: masked, or there are none."""
    num_dst_nodes: int = 0
    """Nodes of the destinations' type."""
    hidden: Mapping[NodeType, list[str]] = field(default_factory=dict)
    """By table, the columns that no batch has; of foreign keys, the edges."""

    def __len__(self) -> int:
        return int(self.nodes[1].numel())

    def links(self) -> tuple[NodeType, Tensor]:
        """Return `pairs`.

        Raises:
            ConfigError: There are none.
        """
        if self.pairs is None:
            raise ConfigError(
                f"split {self.name!r} of task {self.task!r} has no destinations: it is masked "
                "(give mask=False), or the task is no recommendation"
            )
        return self.pairs

    @property
    def dst_nodes(self) -> tuple[NodeType, Tensor]:
        """The destinations' type, and ``[rows, num_dst_nodes]`` bool, sparse CSR."""
        table, pairs = self.links()
        rows, ids = pairs.unique(dim=1)  # sorted, as the form wants it
        starts = torch.searchsorted(rows.contiguous(), torch.arange(len(self) + 1, device="cpu"))
        marks, shape = torch.ones_like(ids, dtype=torch.bool), (len(self), self.num_dst_nodes)
        ids = ids.contiguous()
        return table, torch.sparse_csr_tensor(
            starts, ids, marks, shape, check_invariants=True, device="cpu"
        )

    @property
    def edges(self) -> tuple[EdgeType, Tensor]:
        """The seed edges of recommendation: their type, named by the task, and ``[2, pairs]``."""
        table, pairs = self.links()
        index = torch.stack([self.nodes[1][pairs[0]], pairs[1]])
        return (self.nodes[0], self.task, table), index

    @property
    def transform(self) -> Callable[[Any], Any]:
        """What a loader does with each batch: ``y`` is attached, hidden columns go."""
        return partial(_finished, self, {})


def fanouts_of(split: Split, num_neighbors: Any, schema: DatasetSchema) -> Any:
    """Return fan-outs with 0 for the edges of hidden keys, which no batch has then."""
    kinds = [kind for kind in schema.edge_types or () if not is_label_edge_type(kind)]
    named = {
        (table, f"{start}f2p_{name}")
        for table, columns in split.hidden.items()
        for name in columns
        for start in ("", "rev_")
    }
    # the table with the key is at the other end of the reversed edges: another one that refers to
    # it by a key of that name keeps its edges
    ends = {k: k[2] if k[1].startswith("rev_") else k[0] for k in kinds}
    hidden = {k for k, table in ends.items() if (table, k[1]) in named}
    if not hidden:
        return num_neighbors
    given = num_neighbors if isinstance(num_neighbors, Mapping) else {}
    of = {kind: list(given.get(kind, () if given else num_neighbors)) for kind in kinds}
    return {kind: [0] * len(hops) if kind in hidden else hops for kind, hops in of.items()}


def _finished(split: Split, targets: dict[torch.device, Tensor], batch: Any) -> Any:
    for table, columns in split.hidden.items():
        if "tf" in batch[table]:
            batch[table].tf = without_columns(batch[table].tf, columns)
    if split.target is not None:
        store = batch[split.nodes[0]]
        device = store.input_id.device
        if device not in targets:  # once: a copy for each batch would be waited for
            targets[device] = split.target.to(device)
        store.y = targets[device][store.input_id]
    return batch


def without_columns(frame: Any, columns: list[str]) -> Any:
    """Return a ``TensorFrame`` without columns; without any, it has RelBench's constant."""
    from torch_frame import TensorFrame, stype

    kept = {
        kind: [place for place, name in enumerate(names) if name not in columns]
        for kind, names in frame.col_names_dict.items()
    }
    values = {kind: frame.feat_dict[kind][:, places] for kind, places in kept.items() if places}
    names = {kind: [frame.col_names_dict[kind][i] for i in kept[kind]] for kind in values}
    if not values:
        some = next(iter(frame.feat_dict.values()))
        constant = torch.ones(frame.num_rows, 1, device=some.device)
        values, names = {stype.numerical: constant}, {stype.numerical: ["__const__"]}
    return TensorFrame(values, names, y=frame.y)


@dataclass(frozen=True)
class SplitInput:
    """The arguments of a loader that its seeds stand for, if they are a `Split`."""

    num_neighbors: Any
    seeds: Any
    time: Any
    row: Any = None
    """The column ``input_id`` of the seeds; None: their positions."""

    @classmethod
    def of(
        cls,
        seeds: Any,
        dataset: Any,
        num_neighbors: Any,
        sampler_options: Any,
        keywords: Any,
        time: Any,
        *,
        links: bool = False,
    ) -> "SplitInput":
        """Return the arguments; transform and ``time_attr`` of a split go into ``keywords``.

        Args:
            seeds: The user's.
            dataset: The loader's, as are the following.
            num_neighbors: See there.
            sampler_options: See there.
            keywords: See there.
            time: Times of seeds that were given beside them.
            links: Seeds are edges.

        Raises:
            ConfigError: Times were given as well, or a sampler that walks all edges.
        """
        if not isinstance(seeds, Split):
            return cls(num_neighbors, seeds, time)
        split = seeds
        if time is not None or keywords.get("input_end_time") is not None:
            raise ConfigError(f"split {split.name!r} has times of its own: leave the others out")
        is_remote = hasattr(dataset, "fetch_node_ids")
        schema = dataset.fetch_schema() if is_remote else dataset.schema
        fanouts = fanouts_of(split, num_neighbors, schema)
        walks_all = sampler_options is not None or keywords.get("subgraph_type") == "induced"
        if fanouts is not num_neighbors and walks_all:
            raise ConfigError(
                f"task {split.task!r} hides foreign keys by fan-outs of 0, which sampler_options "
                'and subgraph_type="induced" do not heed: leave them out'
            )
        if split.time is not None:
            keywords.setdefault("time_attr", "time")
        own, then = split.transform, keywords.get("transform")
        keywords["transform"] = own if then is None else lambda batch: then(own(batch))
        if links:
            row = split.links()[1][0]
            time = None if split.time is None else split.time[row]
            return cls(fanouts, split.edges, time, row)
        columns = [split.nodes[1], split.time, torch.arange(len(split), device="cpu")]
        if is_remote:  # any server samples any seed
            servers = dataset.cluster_info.num_storage_nodes
            ids, time, rows = (
                None if column is None else dict(enumerate(column.tensor_split(servers)))
                for column in columns
            )
            return cls(fanouts, (split.nodes[0], ids), time, rows)
        return cls(fanouts, split.nodes, *columns[1:])
