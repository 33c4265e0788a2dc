"""The message from a sampler to a loader: one batch as named tensors.

A `SampleMessage` is a flat dict of CPU tensors. Keys of a homogeneous batch are the names below; in
a heterogeneous one each has its type as a prefix, ``"paper.x"`` or
``"author__writes__paper.edge_index"`` (see `key`). `FIELDS` says what each of them is for. Further
values of a sampler say it themselves (`declared`), or are about the batch as a whole, under
``#META.<name>``; they become attributes of the batch.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import numpy as np

from gigl_loader.dataset.partition.frames import is_of_frame
from gigl_loader.dataset.schema import NEGATIVE, POSITIVE, EdgeType, NodeType, edge_type_str

if TYPE_CHECKING:  # workers read this module and do without torch
    from torch import Tensor

SampleMessage = dict[str, "Tensor"]

Axis = Literal["node", "edge", "seed", "node_hop", "edge_hop", "batch", "other"]
"""What a field has an entry for: each node of its type, each edge, each seed or seed edge, each hop
of nodes or edges; ``"batch"``: it is about the batch as a whole; ``"other"``: it needs code of its
own."""


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """What holds for a field in every message: one line of the table `FIELDS`."""

    name: str
    """Name in a message, after the type."""
    axis: Axis
    batch: tuple[str, ...] = ()
    """Names in a PyG batch."""
    glt: tuple[str, ...] = ()
    """Keys of the same in graphlearn-torch's messages."""
    output: tuple[str, ...] = ()
    """Attributes of PyG's ``SamplerOutput``; several have one row of the field each."""
    matrix: str | None = None
    """Matrix of a `PartitionView` that it has the rows of."""
    is_index: bool = False
    """Whether the axis is the last one, and values are local ids of nodes."""
    of_trees: bool = False
    """Whether values are trees: a part of a batch numbers them anew, padding has one of its own."""
    of_hops: bool = False
    """Whether values are the hops of nodes: a part of a batch counts them anew."""
    on_host: bool = False
    """Whether collating reads it: a copy on the device would have to be awaited."""

    is_declared: bool = False
    """Whether the graph's own attribute or a sampler made it; see `declared`."""

    @property
    def has_rows(self) -> bool:
        """Whether it has rows of the graph, for nodes or edges."""
        return self.matrix is not None or (self.is_declared and self.axis in ("node", "edge"))


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
BATCH = "batch"
"""``[batch_size]`` int64, the seeds' global ids, of the input type."""
INPUT_ID = "input_id"
"""``[batch_size]`` int64, the position of each seed in the loader's input. A column of that name
may come with the seeds, and then replaces it."""
TREE = "#TREE"
"""``[num_nodes]`` int64, with disjoint trees: the position of the seed whose tree has the node.
A message with trees has no `BATCH`."""
HOP = "hop"
"""``[num_nodes]`` int64, by ``with_hop``: the hop in which a node was found first, 0 for roots."""
TOKENS = "#TOKENS."
"""Prefix of what is known of tokens, sequence after sequence; see `gigl_loader.batch.tokens`.
``types``: ``[2, num_types]`` int64, by sorted node type, nodes of the whole graph, and 1 if these
have times; ``length``: ``[num_sequences]`` int32; ``until``, its seed's time: int64 or float64
(left out without times). By token: ``type`` int16 (left out with one type); ``row`` int32, its
place among the nodes of its type; ``hop`` int8; ``score`` float32 (with PPR); ``walk``
``[num_tokens, walk_length]`` float32, ``degree`` int32. ``pair``: ``[num_pairs, 4]`` int32."""
SEED_TIME = "#SEED_TIME"
"""Column and field: ``[batch_size]`` int64 or float64, the time of each seed."""
SEED_START, SEED_WINDOW = "#SEED_START", "#SEED_WINDOW"
"""Columns: ``[num_seeds]`` int64 or float64, the earliest time of a seed's neighbours, or their
greatest age. A loader has at most one of them."""
SEED_GROUP = "#SEED_GROUP"
"""Column of seeds that are shuffled in groups: ``[num_seeds]`` int64, each one's, from 0 on."""
NODES_PER_HOP = "num_sampled_nodes"
"""``[hops + 1]`` int64."""
EDGES_PER_HOP = "num_sampled_edges"
"""``[hops]`` int64."""
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
"""Prefix of a sampler's value about the batch as a whole: an attribute of the batch."""
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

FIELDS: dict[str, FieldSpec] = {
    spec.name: spec
    for spec in (
        FieldSpec(NODE, "node", ("n_id", "node"), ("ids",), ("node",)),  # PyG's name, GLT's name
        FieldSpec(NODE_FEATURES, "node", ("x",), ("nfeats",), matrix="node_features"),
        FieldSpec(NODE_LABELS, "node", ("y",), ("nlabels",), matrix="node_labels"),
        # PyG's name for the tree of each node; in other messages the seeds' ids have that name
        FieldSpec(TREE, "node", ("batch",), output=("batch",), of_trees=True),
        FieldSpec(HOP, "node", ("hop",), of_hops=True),
        FieldSpec(NODES_PER_HOP, "node_hop", *((NODES_PER_HOP,),) * 3, on_host=True),
        FieldSpec(
            EDGE_INDEX, "edge", ("edge_index",), ("cols", "rows"), ("row", "col"), is_index=True
        ),
        FieldSpec(EDGE, "edge", ("e_id", "edge"), ("eids",), ("edge",)),
        FieldSpec(EDGE_FEATURES, "edge", ("edge_attr",), ("efeats",), matrix="edge_features"),
        FieldSpec(EDGES_PER_HOP, "edge_hop", *((EDGES_PER_HOP,),) * 3, on_host=True),
        FieldSpec(BATCH, "seed", ("batch",), ("batch",)),
        FieldSpec(INPUT_ID, "seed", ("input_id",)),
        FieldSpec(SEED_TIME, "seed", ("seed_time",)),
        FieldSpec(EDGE_INPUT_ID, "seed"),
        FieldSpec(EDGE_LABEL, "seed", glt=("#META.edge_label",)),
        FieldSpec(EDGE_TIME, "other"),  # of seed edges, and of binary negatives
        FieldSpec(EDGE_LABEL_INDEX, "other", glt=("#META.edge_label_index",)),
        FieldSpec(IS_HETERO, "other", glt=("#IS_HETERO",), on_host=True),
        FieldSpec(ROWS, "other"),
    )
}
"""All fields whose name is fixed: padding, splitting, transforms, collating and devices read it. A
new one is a line here, and what its sampler writes."""
NODE_ROWS, EDGE_ROWS = (
    {spec.matrix: spec.name for spec in FIELDS.values() if spec.matrix and spec.axis == axis}
    for axis in ("node", "edge")
)
"""Matrices of a `PartitionView`, and the fields that have their rows: of nodes, of edges."""
_DECLARED = "@"
_PREFIXES = {
    META: lambda rest: FieldSpec(META + rest, "batch", (rest,), (META + rest,)),
    LABEL_LINKS: lambda rest: FieldSpec(LABEL_LINKS + rest, "other"),
    LABEL_COUNTS: lambda rest: FieldSpec(LABEL_COUNTS + rest, "other", on_host=True),
    SCALES: lambda rest: FieldSpec(SCALES + rest, "other"),
    ROWS_OF: lambda rest: FieldSpec(ROWS_OF + rest, "other"),
    TOKENS: lambda rest: FieldSpec(TOKENS + rest, "other", on_host=rest == "types"),
}


def declared(axis: Axis, name: str) -> str:
    """Return the field for a further value, which becomes the attribute ``name`` of its store.

    The graph's own attributes of nodes and edges come so. A sampler of one's own declares by it
    what its values are for: ``key(declared("node", "depth"), "paper")`` is ``"paper.@node:depth"``,
    one row for each node of that type, which padding fills up and splitting cuts.

    Args:
        axis: ``"node"``, ``"edge"``, ``"seed"``, or ``"batch"`` for a value that holds for every
            part of a batch.
        name: Without a dot.
    """
    return f"{_DECLARED}{axis}:{name}"


@lru_cache(maxsize=1 << 14)  # keys repeat from batch to batch
def spec_of(key: str) -> tuple[str, FieldSpec]:
    """Return the type that a key of a message begins with, ``""`` if none, and its field."""
    for start, make in _PREFIXES.items():
        if key.startswith(start):
            return "", make(key[len(start) :])
    if key in FIELDS:  # some have a dot
        return "", FIELDS[key]
    graph_type, _, name = key.rpartition(".")
    if name.startswith(_DECLARED):
        axis, _, attribute = name[len(_DECLARED) :].partition(":")
        if axis in ("node", "edge", "seed", "batch"):
            named = () if is_of_frame(attribute) else (attribute,)  # batches have them in `tf`
            return graph_type, FieldSpec(name, cast("Axis", axis), named, is_declared=True)
    return graph_type, FIELDS.get(name) or FieldSpec(name, "other")


def type_name(graph_type: NodeType | EdgeType | None) -> str:
    """Return a type as keys begin with it; None, of a homogeneous message: ``""``."""
    if graph_type is None:
        return ""
    return graph_type if isinstance(graph_type, str) else edge_type_str(graph_type)


def key(name: str, graph_type: NodeType | EdgeType | None = None) -> str:
    """Return the message key of field ``name`` of a node or edge type (None: homogeneous)."""
    return name if graph_type is None else f"{type_name(graph_type)}.{name}"


def keys_of_type(graph_type: NodeType | EdgeType | None) -> dict[str, str]:
    """Return the keys of all fields for one type, by field; a sampler makes them once."""
    return {name: key(name, graph_type) for name in FIELDS}


def fields_of(
    message: Iterable[str], axis: Axis, graph_type: NodeType | EdgeType | None
) -> list[str]:
    """Return the keys of a message with an entry for each node, edge... of a type."""
    wanted = type_name(graph_type)
    found = []
    for name in message:
        of_type, spec = spec_of(name)
        if spec.axis == axis and of_type == wanted:
            found.append(name)
    return found


def label_column(sign: str, edge_type: EdgeType) -> str:
    """Return the name of the labels of one sign (`POSITIVE`, `NEGATIVE`) and supervision edge type.

    A column of that name may come with the seeds: ``[num_seeds, most]`` int64, global ids of the
    labels of each anchor, padded with -1.
    """
    return f"{sign}:{edge_type_str(edge_type)}"


def label_keys(column: str) -> tuple[str, str]:
    """Return the keys of the links and of the counts of the labels of a `label_column`."""
    return LABEL_LINKS + column, LABEL_COUNTS + column


def label_columns(edge_types: Iterable[EdgeType]) -> Iterator[tuple[str, EdgeType, str]]:
    """Yield sign, supervision edge type and `label_column` of all labels that there may be."""
    for edge_type in edge_types:
        for sign in (POSITIVE, NEGATIVE):
            yield sign, edge_type, label_column(sign, edge_type)


def scales_key(features: str) -> str:
    """Return the key of the scales that restore quantized features, by the features' key."""
    return SCALES + features


def scales_of(message: SampleMessage) -> dict[str, str]:
    """Return the keys of all scales of a message, by the keys of their features."""
    return {name.removeprefix(SCALES): name for name in message if name.startswith(SCALES)}


def heterogeneous_field(heterogeneous: bool) -> "Field":
    """Return the field that says whether the keys of a message carry types."""
    return Field.of(IS_HETERO, np.uint8(heterogeneous))


def is_heterogeneous(message: SampleMessage) -> bool:
    """Return whether the keys of a message carry types."""
    return bool(message[IS_HETERO])


def num_seeds(message: SampleMessage, node_type: NodeType | None) -> int | None:
    """Return how many of the first nodes of a type are seeds; None if seeds have another type."""
    for name in (INPUT_ID, BATCH):
        if (given := message.get(key(name, node_type))) is not None:
            return given.size(0)
    return None


@dataclass(frozen=True)
class SeedEdges:
    """The seed edges of a message, with their negatives: tensors, or arrays to send."""

    links: Any
    """See `EDGE_LABEL_INDEX`."""
    input_id: Any
    label: Any = None
    time: Any = None

    @classmethod
    def of(cls, message: SampleMessage) -> "SeedEdges | None":
        """Return those of a message; None if it has none."""
        if EDGE_LABEL_INDEX not in message:
            return None
        return cls(*(message.get(name) for name in _OF_SEED_EDGES))

    def fields(self) -> list["Field"]:
        """Return their fields."""
        given = zip(_OF_SEED_EDGES, vars(self).values(), strict=True)
        return [Field.of(name, value) for name, value in given if value is not None]


_OF_SEED_EDGES = (EDGE_LABEL_INDEX, EDGE_INPUT_ID, EDGE_LABEL, EDGE_TIME)


def columns_of(seeds: Any) -> dict[str, Any]:
    """Return the columns of seeds, by name; GLT's class, which users may give, has none."""
    return getattr(seeds, "extra", None) or {}


@dataclass(frozen=True)
class SeedColumns:
    """The columns that may come with seeds, besides labels of anchors (`label_column`).

    Values are tensors, arrays, or what a user gave for them; None: not there. What each of them is
    stands with its name above, in the order of `_OF_SEEDS`.
    """

    input_id: Any = None
    group: Any = None
    time: Any = None
    start: Any = None
    window: Any = None
    targets: Any = None
    label: Any = None

    @classmethod
    def of(cls, columns: dict[str, Any]) -> "SeedColumns":
        """Return those among ``columns``, which are by name."""
        return cls(*map(columns.get, _OF_SEEDS))

    def named(self) -> dict[str, Any]:
        """Return those that are there, by name."""
        columns = zip(_OF_SEEDS, vars(self).values(), strict=True)
        return {name: column for name, column in columns if column is not None}


_OF_SEEDS = (INPUT_ID, SEED_GROUP, SEED_TIME, SEED_START, SEED_WINDOW, EDGE_TARGETS, EDGE_LABEL)


def is_identity(column: str) -> bool:
    """Return whether a column tells its seed from others: no position of it, and no group."""
    return column not in (INPUT_ID, SEED_GROUP)


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
        return cls(key, array.dtype.name, array.shape, partial(np.copyto, src=array))


def stays_on_host(key: str) -> bool:
    """Return whether collating reads this tensor: a copy of it would have to be awaited."""
    return spec_of(key)[1].on_host
