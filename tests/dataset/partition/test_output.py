"""`PartitionOutput` as datasets; label edges that come among its edges, as GiGL has them."""

import dataclasses
from typing import Any

import pytest
import torch

from gigl_loader import (
    ConfigError,
    DistABLPLoader,
    DistDataset,
    FeaturePartitionData,
    GraphPartitionData,
    PartitionOutput,
    UsageError,
    WrongTypeError,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as E
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as N
from gigl_loader.dataset.schema import EdgeDir
from gigl_loader.runtime import glt_classes
from tests.dataset.dataset_reference import KNOWS, as_index, by_type, rows_of

BUYS = ("user", "buys", "item")
RING = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
LABELS = torch.tensor([[0, 1, 1], [1, 2, 3]])


def _dataset(edge_dir: EdgeDir, edges: dict, num_nodes: dict, rank: int = 0, owners=None):
    owners = owners or {t: torch.zeros(n, dtype=torch.int64) for t, n in num_nodes.items()}
    count = 1 + max(int(book.max()) for book in owners.values())
    dataset = DistDataset(rank, count, edge_dir)
    parts = {t: GraphPartitionData(e, torch.arange(e.size(1))) for t, e in edges.items()}
    books = {t: torch.zeros(e.size(1), dtype=torch.int64) for t, e in edges.items()}
    dataset.build(
        partition_output=PartitionOutput(
            node_partition_book=owners, edge_partition_book=books, partitioned_edge_index=parts
        )
    )
    return dataset


def _stored(edge_dir: EdgeDir, labels: dict) -> dict:
    """Return labels, anchors first, as they are among the edges: as all edges of ``edge_dir``."""
    if edge_dir == "out":
        return labels
    return {label_type[::-1]: pairs.flip(0) for label_type, pairs in labels.items()}


@pytest.mark.multiprocess
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_untyped_labels_are_stored_as_the_edges_are(edge_dir: EdgeDir, tmp_path) -> None:
    """Names cannot tell the direction here, where anchors and labels are of one type."""
    positive = message_passing_to_positive_label(E)
    negative = message_passing_to_negative_label(E)
    labels = torch.tensor([[0, 1], [1, 2]])
    given = _stored(edge_dir, {positive: labels, negative: labels.flip(1)})
    dataset = _dataset(edge_dir, {E: RING, **given}, {N: 4})
    assert torch.equal(dataset.label_edges[positive], labels)
    assert torch.equal(dataset.label_edges[negative], labels)
    from gigl_loader.testing import one_rank

    with (
        one_rank(tmp_path),
        DistABLPLoader(dataset, [0], torch.tensor([0, 1]), batch_size=2) as loader,
    ):
        batch = next(iter(loader))
    found = {a: batch.n_id[labels].tolist() for a, labels in batch.y_positive.items()}
    assert found == {0: [1], 1: [2]}


BACK = ("item", "buys", "user")


@pytest.mark.parametrize(
    "walked",
    [
        pytest.param([BUYS], id="from the anchors"),
        pytest.param([BACK], id="to the anchors"),
        pytest.param([BUYS, BACK], id="one relation, both directions"),
        pytest.param([("user", "knows", "user")], id="another relation"),
    ],
)
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_typed_labels_are_stored_as_the_edges_are(edge_dir: EdgeDir, walked: list) -> None:
    """Whatever messages pass over: GiGL turns labels for "in" and never looks at other types."""
    positive = message_passing_to_positive_label(BUYS)
    negative = message_passing_to_negative_label(BUYS)
    given = _stored(edge_dir, {positive: LABELS, negative: LABELS[:, :1]})
    edges = {**dict.fromkeys(walked, RING), **given}
    dataset = _dataset(edge_dir, edges, {"user": 4, "item": 4})
    assert set(dataset.label_edges) == {positive, negative}
    assert torch.equal(dataset.positive_label_edges(BUYS), LABELS)
    assert torch.equal(dataset.negative_label_edges(BUYS), LABELS[:, :1])
    assert set(dataset.edge_partition_book or {}) <= set(walked)
    assert set(dataset.graph) == {*walked, *given}, "GiGL's scripts read label edges under its name"
    # the same memory as a dataset of GLT's class has it, which says nothing of anchors
    again = DistDataset.wrap(_glt_copy(dataset)).positive_label_edges(BUYS)
    assert again is not None
    assert torch.equal(again, LABELS)


def _glt_copy(dataset: DistDataset) -> glt_classes.DistDataset:
    plain = glt_classes.DistDataset(1, 0, edge_dir=dataset.edge_dir)
    plain.graph, plain.node_pb = dataset.graph, dataset.node_pb
    return plain


def test_labels_are_at_the_owner_of_their_anchor() -> None:
    positive = message_passing_to_positive_label(BUYS)
    owners = {"user": torch.tensor([0, 0, 0, 1]), "item": torch.zeros(4, dtype=torch.int64)}
    edges = {BUYS: RING, **_stored("in", {positive: LABELS})}
    dataset = _dataset("in", edges, {}, owners=owners)
    assert torch.equal(dataset.positive_label_edges(BUYS), LABELS)
    edges |= _stored("in", {positive: torch.tensor([[0, 3], [1, 1]])})
    with pytest.raises(ConfigError, match="labels are stored where their anchor is"):
        _dataset("in", edges, {}, owners=owners)


def test_label_edges_alone_or_twice_are_refused() -> None:
    stored = _stored("in", {message_passing_to_positive_label(BUYS): LABELS})
    with pytest.raises(ConfigError, match="label edges only"):
        _dataset("in", stored, {"user": 4, "item": 4})
    parts = {t: GraphPartitionData(e) for t, e in {BUYS: RING, **stored}.items()}
    output = PartitionOutput(
        partitioned_edge_index=parts, partitioned_positive_labels={BUYS: LABELS}
    )
    with pytest.raises(ConfigError, match="given already"):
        DistDataset(0, 1, "in").build(partition_output=output)


def _output(**changes):
    fields = {
        "node_partition_book": torch.tensor([0, 1, 0, 1]),
        "edge_partition_book": torch.tensor([1, 0, 1]),
        "partitioned_edge_index": GraphPartitionData(
            as_index([(2, 1), (0, 3)]), torch.tensor([2, 0]), torch.tensor([0.5, 2.0])
        ),
        "partitioned_node_features": FeaturePartitionData(
            torch.tensor([[3.0], [1.0]]), torch.tensor([3, 1])
        ),
        "partitioned_edge_features": FeaturePartitionData(
            torch.tensor([[0], [2]]), torch.tensor([0, 2])
        ),
        "partitioned_positive_labels": as_index([(3, 0), (1, 2)]),
        "partitioned_node_labels": FeaturePartitionData(
            torch.tensor([30, 10]), torch.tensor([3, 1])
        ),
    }
    return PartitionOutput(**(fields | changes))


def _rows(ids):
    return FeaturePartitionData(torch.ones(1, 1), torch.tensor(ids))


def _built(**changes):
    dataset = DistDataset(1, 2, edge_dir="in")
    dataset.build(partition_output=_output(**changes))
    return dataset


def test_build_takes_tensors_with_their_ids() -> None:
    dataset = _built()
    view = dataset.view()
    assert dataset.schema.is_homogeneous_with_labeled_edge_type
    assert rows_of(view.adjacency[E]) == {1: [(2, 2, 0.5)], 3: [(0, 0, 2.0)]}
    assert dataset.positive_label_edges().tolist() == [[1, 3], [2, 0]]
    for rows, scale in ((view.node_features[N], 1), (view.node_labels[N], 10)):
        assert rows.values[rows.locate(torch.tensor([1, 3]))].flatten().tolist() == [
            scale,
            3 * scale,
        ]
    assert by_type(dataset.node_ids)[N].tolist() == [1, 3]
    with pytest.raises(UsageError, match="built already"):
        dataset.build(partition_output=_output())


def test_build_by_type_with_one_partition_needs_no_books() -> None:
    dataset = DistDataset(0, 1, edge_dir="out")
    dataset.build(
        partition_output=PartitionOutput(
            partitioned_edge_index={BUYS: GraphPartitionData(as_index([(0, 1), (0, 0)]))},
            partitioned_node_features={"user": FeaturePartitionData(torch.ones(3, 2))},
            partitioned_positive_labels={KNOWS: as_index([(2, 1)])},
        )
    )
    assert dataset.view().num_nodes == {"user": 3, "item": 2}
    assert rows_of(dataset.view().adjacency[BUYS]) == {0: [(0, 1, None), (1, 0, None)]}
    found = dataset.positive_label_edges(KNOWS)
    assert found is not None
    assert found.tolist() == [[2], [1]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"partitioned_edge_index": None}, "needs edges"),
        ({"partitioned_edge_index": GraphPartitionData(as_index([(0, 1)]))}, "needs edge_ids"),
        (
            {"partitioned_edge_index": GraphPartitionData(as_index([(0, 2)]), torch.tensor([0]))},
            r'belong to other partitions.*edge_dir="in"',
        ),
        (
            {"partitioned_edge_index": GraphPartitionData(as_index([(0, 1)]), torch.tensor([9]))},
            "id 9",
        ),
        ({"node_partition_book": None}, "several partitions need"),
        ({"node_partition_book": torch.tensor([0, 1, 0, 2])}, "names partition 2"),
        ({"partitioned_positive_labels": as_index([(0, 1)])}, r"anchors \(row 0\)"),
        ({"edge_partition_book": None}, "need an edge_partition_book"),
        ({"partitioned_node_features": _rows([3])}, "1 of this partition's ids have no row"),
        ({"partitioned_node_features": _rows([1.0])}, "1-D int64"),
    ],
)
def test_build_refuses(changes, message) -> None:
    with pytest.raises(ConfigError, match=message):
        _built(**changes)


@dataclasses.dataclass
class TheirEdges:
    """GiGL's `GraphPartitionData` by its fields."""

    edge_index: torch.Tensor
    edge_ids: torch.Tensor | None
    weights: torch.Tensor | None = None


@dataclasses.dataclass
class TheirRows:
    """GiGL's `FeaturePartitionData`."""

    feats: torch.Tensor
    ids: torch.Tensor | None


@dataclasses.dataclass
class TheirOutput:
    """GiGL's `PartitionOutput`, with a field that ours does not have."""

    node_partition_book: Any
    edge_partition_book: Any
    partitioned_edge_index: Any
    partitioned_node_features: Any
    partitioned_edge_features: Any = None
    partitioned_positive_labels: Any = None
    partitioned_negative_labels: Any = None
    partitioned_node_labels: Any = None
    partitioned_node_quantized_features: Any = None


def _theirs(edges: Any = None, **more: Any) -> TheirOutput:
    return TheirOutput(
        node_partition_book=torch.zeros(4, dtype=torch.int64),
        edge_partition_book=torch.zeros(4, dtype=torch.int64),
        partitioned_edge_index=TheirEdges(RING, torch.arange(4)) if edges is None else edges,
        partitioned_node_features=TheirRows(torch.arange(8.0).view(4, 2), torch.arange(4)),
        **more,
    )


def test_objects_of_the_same_fields_are_taken_whoever_made_their_class() -> None:
    dataset = DistDataset(0, 1, "out")
    dataset.build(partition_output=_theirs())  # type: ignore[arg-type]  # by its fields
    assert dataset.get_features(torch.tensor([2])).tolist() == [[4.0, 5.0]]
    assert dataset.num_edges == 4


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (
            _theirs(partitioned_node_quantized_features=torch.zeros(1)),
            ConfigError,
            r"has \['partitioned_node_quantized_features'\]",
        ),
        (
            _theirs(edges=TheirRows(RING, None)),
            WrongTypeError,
            "must be a GraphPartitionData.*Their",
        ),
        ({"edges": RING}, WrongTypeError, "must be a PartitionOutput.*builtins.dict"),
        (TheirOutput, WrongTypeError, "must be a PartitionOutput"),
    ],
)
def test_other_objects_are_refused_by_their_whole_name(given: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        DistDataset(0, 1, "out").build(partition_output=given)
