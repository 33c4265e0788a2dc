"""Messages by graphlearn-torch's keys: what its producers send, and what its loaders' hooks read.

::

    homogeneous   ids  nfeats  nlabels  rows  cols  eids  efeats  batch  #META.<name>
    typed         paper.ids  paper.nfeats ...    author__writes__paper.rows ...

The table `FIELDS` has the names. Local ids are the same in both: ``rows`` is row 1 of `EDGE_INDEX`,
the nodes that edges were sampled for, and ``cols`` is row 0, their neighbours. Fields without such
a name keep their own. Edge types of keys are those of graphlearn-torch's messages: with
``edge_dir="in"`` the reverse of a batch's type.

Source:
    graphlearn-torch 0.2.4, ``distributed/dist_neighbor_sampler.py`` (``_colloate_fn``) and
    ``distributed/dist_loader.py`` (``_collate_fn``).
"""

import ast
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gigl_loader.batch.message import (
    FIELDS,
    IS_HETERO,
    LABEL_LINKS,
    META,
    SampleMessage,
    heterogeneous_field,
    key,
    label_keys,
    num_seeds,
    spec_of,
    type_name,
)
from gigl_loader.dataset.schema import (
    LABEL_TYPES,
    NEGATIVE,
    POSITIVE,
    EdgeType,
    NodeType,
    edge_type_str,
    is_label_edge_type,
    label_to_message_passing,
)

_OWN = {glt: spec.name for spec in FIELDS.values() for glt in spec.glt}
"""Fields by graphlearn-torch's names."""
_NODES, _SEEDS, _LINKS = _OWN["ids"], _OWN["batch"], _OWN["rows"]

POSITIVE_LABELS, NEGATIVE_LABELS = "gigl_positive_labels.", "gigl_negative_labels."
"""GiGL's names of the labels of anchors, before the text of their label edge type."""
_LABELS = {POSITIVE: META + POSITIVE_LABELS, NEGATIVE: META + NEGATIVE_LABELS}
_PPR_EDGES, _PPR_WEIGHTS = "ppr_edge_index.", "ppr_weight."


class GLTNames:
    """The keys of one loader's messages, by the keys that graphlearn-torch has for them.

    Args:
        node_types: Of batches; None: they are homogeneous.
        edge_types: Edge types of batches, by their names in graphlearn-torch's keys.
        of_graph: Edge types of the graph, those of labels among them.
        edge_dir: Of the graph.
    """

    def __init__(
        self,
        node_types: Iterable[NodeType] | None,
        edge_types: Mapping[str, EdgeType],
        of_graph: Iterable[EdgeType] = (),
        edge_dir: str = "in",
    ) -> None:
        labels = {name for name in of_graph if is_label_edge_type(name)}
        self._supervision = dict(
            named
            for name in map(label_to_message_passing, labels)
            for named in ((edge_type_str(name), name), (edge_type_str(name[::-1]), name[::-1]))
        )
        self._step = -1 if edge_dir == "in" else 1
        self.node_types = None if node_types is None else list(node_types)
        self.edge_types = {name: type_name(edge_type) for name, edge_type in edge_types.items()}
        """Names of edge types in our keys, by those in graphlearn-torch's."""
        self._glt_types = {own: name for name, own in self.edge_types.items()}

    def glt(self, own: str) -> tuple[str, ...]:
        """Return graphlearn-torch's keys of one of ours, itself if it has none; two: its rows."""
        of_type, spec = spec_of(own)
        if not spec.glt:
            return (own,)
        start = self._glt_types.get(of_type, of_type)
        return tuple(f"{start}.{name}" if start else name for name in spec.glt)

    def labels(self, message: SampleMessage) -> SampleMessage:
        """Return the labels of anchors as GiGL's metadata: ``[num_anchors, most]`` ids, then -1."""
        found: SampleMessage = {}
        for name in message:
            if not name.startswith(LABEL_LINKS):
                continue
            column = name[len(LABEL_LINKS) :]
            sign, _, text = column.partition(":")
            label_type = LABEL_TYPES[sign](self._supervision[text])
            of_type = key(_NODES, label_type[2])
            nodes = message[of_type if of_type in message else _NODES]
            links, counts = (message[one] for one in label_keys(column))
            places = torch.arange(int(counts.max()) if counts.numel() else 0, device=links.device)
            labels = torch.full((counts.numel(), places.numel()), -1, device=links.device)
            labels[places < counts.to(links.device)[:, None]] = nodes[links[1]]
            found[f"{_LABELS[sign]}{label_type[:: self._step]}"] = labels
        return found

    def own(self, glt: str) -> str:
        """Return our key of one of graphlearn-torch's; itself if it is none."""
        if glt.startswith("#"):
            return _OWN.get(glt, glt)
        of_type, _, name = glt.rpartition(".")
        of_type = self.edge_types.get(of_type, of_type)
        name = _OWN.get(name, name)
        return f"{of_type}.{name}" if of_type else name


def extract_edge_type_metadata(
    metadata: Mapping[str, Tensor], prefixes: Iterable[str]
) -> tuple[dict[str, dict[EdgeType, Tensor]], dict[str, Tensor]]:
    """Return what begins with a prefix, by prefix and the edge type after it, and the rest."""
    matched: dict[str, dict[EdgeType, Tensor]] = {prefix: {} for prefix in prefixes}
    rest = {}
    for name, value in metadata.items():
        prefix = next((prefix for prefix in matched if name.startswith(prefix)), None)
        if prefix is None:
            rest[name] = value
        else:
            matched[prefix][ast.literal_eval(name[len(prefix) :])] = value
    return matched, rest


def with_ppr_outputs(data: Any, metadata: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return a batch with the edges that GiGL's PPR sampler sends, and the rest of the metadata.

    Messages of our own samplers have no such metadata, as their edges are edges of the message: the
    batch comes back as it was.

    Args:
        data: A batch.
        metadata: Values of the message without ``#META.``, by GiGL's names: ``edge_index`` and
            ``edge_attr`` of a homogeneous graph; ``ppr_edge_index.`` and ``ppr_weight.`` with the
            text of an edge type.
    """
    found, rest = extract_edge_type_metadata(metadata, (_PPR_EDGES, _PPR_WEIGHTS))
    made, weights = found.values()
    if isinstance(data, Data) and "edge_index" in rest:
        data.edge_index, data.edge_attr = rest.pop("edge_index"), rest.pop("edge_attr", None)
    for edge_type, links in made.items():
        edges = data if isinstance(data, Data) else data[edge_type]
        edges.edge_index, edges.edge_attr = links, weights[edge_type]
    if made and isinstance(data, HeteroData):
        for edge_type in data.edge_types:
            if edge_type not in made and not data[edge_type].get("edge_index", _NO_EDGES).numel():
                del data[edge_type]
    return data, rest


_NO_EDGES = torch.empty(2, 0, dtype=torch.int64, device="cpu")


class GLTMessage(dict[str, Any]):
    """A message by graphlearn-torch's keys, which also answers ours.

    Keys, items and values are by graphlearn-torch's names, and by our own where it has none. A
    value that is set takes effect in the batch.
    """

    def __init__(self, message: SampleMessage, names: GLTNames) -> None:
        super().__init__()
        self._names = names
        for name, value in (message | names.labels(message)).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        keys = self._names.glt(name)
        for one, part in zip(keys, value if len(keys) > 1 else (value,), strict=True):
            super().__setitem__(one, part)

    def __missing__(self, name: str) -> Any:
        keys = self._names.glt(name)
        if name in keys or not all(map(super().__contains__, keys)):
            raise KeyError(name)
        values = [self[one] for one in keys]
        return values[0] if len(values) == 1 else torch.stack(values)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (
            isinstance(name, str) and all(map(super().__contains__, self._names.glt(name)))
        )

    def __delitem__(self, name: str) -> None:
        for one in self._names.glt(name):
            super().__delitem__(one)

    # those of a dict would not ask `__missing__`
    get = Mapping.get  # type: ignore[assignment]  # its values have no type here

    def pop(self, name: str, *default: Any) -> Any:
        """Remove a value and return it."""
        if default and name not in self:
            return default[0]
        value = self[name]
        del self[name]
        return value


def _tensor(value: Any) -> Tensor:
    return value if isinstance(value, Tensor) else torch.as_tensor(value, device="cpu")


def own_message(
    message: Mapping[str, Any],
    names: GLTNames,
    seed_type: NodeType | None,
    batch_size: int | None,
    *,
    may_lack_types: bool,
) -> SampleMessage:
    """Return a message by our keys; what has such a key already keeps it.

    Args:
        message: By graphlearn-torch's keys, all or some.
        names: The loader's.
        seed_type: Type of the seeds; None: homogeneous.
        batch_size: Nodes that are the seeds of a message that does not name these, its first ones;
            None: seeds are edges.
        may_lack_types: Types that it does not name are empty, as our own samplers send them.
    """
    own: SampleMessage = {}
    given = set(message)
    ends: dict[str, dict[str, Tensor]] = {}
    for name, value in message.items():
        if name.startswith(tuple(_LABELS.values())):
            continue  # a copy of what the message has by our keys, or for a hook to take
        found, tensor = names.own(name), _tensor(value)
        if found != name and found.endswith(_LINKS):
            ends.setdefault(found, {})[name.rpartition(".")[2]] = tensor
        elif found == name or found not in given:  # ours, if both are given
            own[found] = tensor
    for found, rows in ends.items():
        if found not in given:
            own[found] = torch.stack([rows[name] for name in FIELDS[_LINKS].glt])
    # Our samplers send a homogeneous graph with labels as one without types; others' send types.
    typed = names.node_types is not None and bool(_tensor(message.get(IS_HETERO, True)).any())
    seed_type = seed_type if typed else None
    on_host = torch.tensor(typed, dtype=torch.uint8, device="cpu")
    own.setdefault(heterogeneous_field(typed).key, on_host)
    if typed and may_lack_types:
        _add_empty_types(own, names)
    if batch_size is not None and num_seeds(own, seed_type) is None:
        own[key(_SEEDS, seed_type)] = own[key(_NODES, seed_type)][:batch_size]
    return own


def _add_empty_types(own: SampleMessage, names: GLTNames) -> None:
    nodes = [value for name, value in own.items() if name.endswith(_NODES)]
    empty = torch.empty(2, 0, dtype=torch.int64, device=nodes[0].device if nodes else "cpu")
    for node_type in names.node_types or ():
        own.setdefault(key(_NODES, node_type), empty[0])
    for edge_type in names.edge_types.values():
        own.setdefault(f"{edge_type}.{_LINKS}", empty)
