"""The message from a sampler to a loader: one batch as named tensors.

A `SampleMessage` is a flat dict of CPU tensors. Keys of a homogeneous batch are the names below; in
a heterogeneous one each has its type as a prefix, ``"paper.x"`` or
``"author__writes__paper.edge_index"`` (see `key`). Further values of a sampler go under
``#META.<name>`` and become attributes of the batch.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gigl_loader.dataset.schema import EdgeType, NodeType, edge_type_str

if TYPE_CHECKING:  # workers read this module and do without torch
    from torch import Tensor

SampleMessage = dict[str, "Tensor"]

NODE = "n_id"
"""``[num_nodes]`` int64, global ids; seeds first."""
EDGE_INDEX = "edge_index"
"""``[2, num_edges]`` int64, local: row 0 the neighbour, row 1 the node it was sampled for."""
EDGE = "e_id"
"""``[num_edges]`` int64, global edge ids."""
NODE_FEATURES = "x"
"""``[num_nodes, dim]``."""
NODE_LABELS = "y"
"""``[num_nodes, ...]``."""
EDGE_FEATURES = "edge_attr"
"""``[num_edges, dim]``."""
NODE_ROWS = {"node_features": NODE_FEATURES, "node_labels": NODE_LABELS}
"""Matrices of a `PartitionView`, and the fields that have their rows, one for each node."""
EDGE_ROWS = {"edge_features": EDGE_FEATURES}
"""Matrices whose rows a batch has for each edge, and their fields."""
BATCH = "batch"
"""``[batch_size]`` int64, the seeds' global ids, of the input type."""
INPUT_ID = "input_id"
"""``[batch_size]`` int64, the position of each seed in the loader's input. A column of that name
may come with the seeds, and then replaces it."""
TREE = "#TREE"
"""``[num_nodes]`` int64, with disjoint trees: the position of the seed whose tree has the node.
A message with trees has no `BATCH`."""
SEED_TIME = "#SEED_TIME"
"""Column and field: ``[batch_size]`` int64 or float64, the time of each seed."""
SEED_GROUP = "#SEED_GROUP"
"""Column of seeds that are shuffled in groups: ``[num_seeds]`` int64, each one's, from 0 on."""
ATTRIBUTE = "@"
"""Prefix of a further attribute of nodes or edges, one row for each; a name has no dot."""
NODES_PER_HOP = "num_sampled_nodes"
"""``[hops + 1]`` int64."""
EDGES_PER_HOP = "num_sampled_edges"
"""``[hops]`` int64."""
PPR = "ppr"
"""Relation of the edges that a sampler by personalised PageRank makes, seed first."""
POSITIVE, NEGATIVE = "positive", "negative"
"""The two signs of a label."""
LABEL_LINKS = "#LABELS.links."
"""Prefix of a `label_column`. ``[2, num_labels]`` int64, local: anchors (ascending), label
nodes."""
LABEL_COUNTS = "#LABELS.counts."
"""Prefix of a `label_column`. ``[batch_size]`` int64, the number of labels of each anchor."""
EDGE_TARGETS = "#EDGE_LABEL.targets"
"""Column of seed edges: ``[num_seeds]`` int64, global ids of their destinations."""
EDGE_LABEL = "#EDGE_LABEL.label"
"""Column and field: ``[num_edges, ...]``, the label of each seed edge."""
EDGE_LABEL_INDEX = "#EDGE_LABEL.index"
"""``[2, seed edges + negatives]`` int64, local; for triplets ``[2 * seed edges + negatives]``:
sources, destinations, negative destinations."""
EDGE_INPUT_ID = "#EDGE_LABEL.input_id"
"""``[num_edges]`` int64, the position of each seed edge in the loader's input."""
EDGE_TIME = "#EDGE_LABEL.time"
"""``[num_edges]``, also for binary negatives: the time of each seed edge, its column
`SEED_TIME`."""
META = "#META."
SCALES = "#SCALES."
"""Prefix of the key of quantized features: the scales to restore float32; see
`gigl_loader.dataset.lookup`."""
ROWS = "#ROWS"
"""``[n]`` uint8, in a batch without rows: the description of the missing rows; see
`gigl_loader.sampler.rows.row_exchange`."""
ROWS_OF = "#ROWS_OF."
"""Prefix of the key of rows whose ids are in no other tensor: ``[num_rows]`` int64."""
IS_HETERO = "#IS_HETERO"
"""uint8 scalar: whether the keys carry types."""


def key(name: str, graph_type: NodeType | EdgeType | None = None) -> str:
    """Return the message key of field ``name`` of a node or edge type (None: homogeneous)."""
    if graph_type is None:
        return name
    prefix = graph_type if isinstance(graph_type, str) else edge_type_str(graph_type)
    return f"{prefix}.{name}"


def label_column(sign: str, edge_type: EdgeType) -> str:
    """Return the name of the labels of one sign (`POSITIVE`, `NEGATIVE`) and supervision edge type.

    A column of that name may come with the seeds: ``[num_seeds, most]`` int64, global ids of the
    labels of each anchor, padded with -1.
    """
    return f"{sign}:{edge_type_str(edge_type)}"


@dataclass(frozen=True)
class Attempt:
    """One attempt at an epoch, from its start to its end or to an early stop.

    A loader makes one for each `iter`, and passes it to its samplers: everywhere this value
    identifies leftovers of an earlier attempt.
    """

    epoch: int
    """Together with the seed it decides the shuffle and every draw."""
    serial: int
    """Number of the attempt in its loader, from 1 on."""
    seed: int | None = None
    """The seed of a loaded state, where it takes the place of one that was drawn for the samplers;
    None: the samplers' own."""


@dataclass(frozen=True)
class BatchTicket:
    """A batch to sample: the inputs of its content, its consumer, and its attempt."""

    stream: int
    """Consumer of a producer; 0 if there is one."""
    serial: int
    """Number of the attempt; see `Attempt`."""
    epoch: int
    batch: int
    """Index within the epoch, over the whole input."""
    position: int = 0
    """Position in the loader's epoch, from the loader to the worker and back."""
    seed: int | None = None
    """See `Attempt`."""
    turn: int = 0
    """Number of the batch among those that the consumer asked one producer for, from 0."""

    @property
    def attempt(self) -> Attempt:
        """The attempt of the batch."""
        return Attempt(self.epoch, self.serial, self.seed)

    @property
    def content(self) -> tuple[int, int]:
        """Epoch and batch, which decide the batch's content."""
        return self.epoch, self.batch


AT_ONCE_STREAM, AT_ONCE_EPOCH = -1, 2**62
"""Stream and epoch of a batch requested by its seeds: no epoch has that number, so its draws differ
from all others."""


class OnDevice(Protocol):
    """Tensors already on the device, with all work on them finished."""

    def lent(self) -> SampleMessage:
        """Return them by key, for use on the current stream of the calling thread."""
        ...


@dataclass(frozen=True)
class Received:
    """A message with its ticket and the worker's measurements."""

    ticket: BatchTicket
    message: SampleMessage
    stats: dict[str, Any]
    rows: "OnDevice | None" = None
    """Tensors of the message that reached the device without the host."""

    def whole(self) -> SampleMessage:
        """Return all tensors, for use on the current stream of the calling thread."""
        return self.message if self.rows is None else {**self.message, **self.rows.lent()}


_SET_BACK_S = 60.0
"""Seconds by which a worker's clock goes back if it was set; batches come later by less."""


@dataclass
class BatchCounts:
    """Sums over delivered batches."""

    batches: int = 0
    seeds: int = 0
    nbytes: int = 0
    sample_s: float = 0.0
    gather_s: float = 0.0
    busy_s: dict[Any, float] = field(default_factory=dict)
    """Busy seconds of each worker, on one batch or on several at a time."""
    busy_until: dict[Any, float] = field(default_factory=dict)
    """End of the counted time, in seconds since 1970."""
    restarts: dict[Any, int] = field(default_factory=dict)
    """Replaced workers, by the position of their producer or server."""

    def count(self, stats: dict[str, Any], worker: Hashable, position: Hashable) -> None:
        """Count one batch.

        Args:
            stats: The worker's measurements, and the number of workers that its producer has
                replaced.
            worker: The worker of the batch.
            position: Its producer or server.
        """
        self.batches += 1
        self.seeds += stats.get("seeds", 0)
        self.nbytes += stats.get("nbytes", 0)
        sample_s, gather_s = stats.get("sample_s", 0.0), stats.get("gather_s", 0.0)
        self.sample_s += sample_s
        self.gather_s += gather_s
        # each batch has the total of its producer, and an older one may come later
        self.restarts[position] = max(self.restarts.get(position, 0), stats.get("restarts", 0))
        # a worker samples several batches at a time: overlapping times count once. Both times are
        # from the wall clock of the worker, which may be set back: then counting begins anew
        ended = stats.get("ended_ns", 0) / 1e9
        until = self.busy_until.get(worker, 0.0)
        if ended < until - _SET_BACK_S:
            self.busy_until[worker] = until = 0.0
        counted = max(0.0, min(sample_s + gather_s, ended - until))
        self.busy_s[worker] = self.busy_s.get(worker, 0.0) + counted
        self.busy_until[worker] = max(ended, until)


@dataclass(frozen=True)
class Field:
    """One tensor of a message: its size is known before its memory, which ``write`` then fills."""

    key: str
    dtype: str
    """A type by torch's name: ``"float32"``."""
    shape: tuple[int, ...]
    # Called with memory of the receiver, e.g. a slot: the tensor is not made elsewhere and copied.
    write: Callable[[Any], Any]
    """Takes an array of that shape and of the type's storage dtype (`runtime.memory.segments`)."""

    @classmethod
    def of(cls, key: str, values: Any) -> "Field":
        """Return a field that copies ``values``: an array, or anything numpy can convert to one."""
        array = np.asarray(values)
        return cls(key, array.dtype.name, array.shape, lambda out: np.copyto(out, array))


def stays_on_host(key: str) -> bool:
    """Return whether collating reads this tensor: a copy of it would have to be awaited."""
    # endswith: the key of a typed batch starts with the type
    per_hop = key.endswith((NODES_PER_HOP, EDGES_PER_HOP))
    return key == IS_HETERO or per_hop or key.startswith(LABEL_COUNTS)
