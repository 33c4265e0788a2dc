"""Label edges that come among the edges of a `PartitionOutput`, as GiGL builds its datasets."""

import pytest
import torch

from gigl_loader import (
    ConfigError,
    DistABLPLoader,
    DistDataset,
    GraphPartitionData,
    PartitionOutput,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as E
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as N

BUYS = ("user", "buys", "item")
RING = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
LABELS = torch.tensor([[0, 1, 1], [1, 2, 3]])


def _dataset(edge_dir: str, edges: dict, num_nodes: dict, rank: int = 0, owners=None):
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


@pytest.mark.multiprocess
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_untyped_labels_are_the_same_in_both_directions(edge_dir: str, tmp_path) -> None:
    positive = message_passing_to_positive_label(E)
    negative = message_passing_to_negative_label(E)
    labels = torch.tensor([[0, 1], [1, 2]])
    dataset = _dataset(edge_dir, {E: RING, positive: labels, negative: labels.flip(1)}, {N: 4})
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


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_typed_labels_are_the_same_in_both_directions(edge_dir: str, turned: bool) -> None:
    positive = message_passing_to_positive_label(BUYS)
    given = {positive: LABELS}
    if turned and edge_dir == "in":  # as GiGL turns them
        given = {positive[::-1]: LABELS.flip(0)}
    dataset = _dataset(edge_dir, {BUYS: RING, **given}, {"user": 4, "item": 4})
    assert set(dataset.label_edges) == {positive}
    assert torch.equal(dataset.positive_label_edges(BUYS), LABELS)
    assert BUYS in dataset.view().adjacency
    assert set(dataset.edge_partition_book or {}) <= {BUYS}


def test_labels_of_an_edge_type_of_the_graph_are_taken_as_they_are_named() -> None:
    back = ("item", "buys", "user")
    label_type = message_passing_to_positive_label(back)
    edges = {BUYS: RING, back: RING, label_type: LABELS}
    dataset = _dataset("in", edges, {"user": 4, "item": 4})
    assert torch.equal(dataset.label_edges[label_type], LABELS)


def test_labels_are_at_the_owner_of_their_anchor() -> None:
    positive = message_passing_to_positive_label(BUYS)
    owners = {"user": torch.tensor([0, 0, 0, 1]), "item": torch.zeros(4, dtype=torch.int64)}
    edges = {BUYS: RING, positive: LABELS}
    dataset = _dataset("in", edges, {}, owners=owners)
    assert torch.equal(dataset.positive_label_edges(BUYS), LABELS)
    edges[positive] = torch.tensor([[0, 3], [1, 1]])
    with pytest.raises(ConfigError, match="labels are stored where their anchor is"):
        _dataset("in", edges, {}, owners=owners)


def test_label_edges_alone_or_twice_are_refused() -> None:
    positive = message_passing_to_positive_label(BUYS)
    with pytest.raises(ConfigError, match="label edges only"):
        _dataset("in", {positive: LABELS}, {"user": 4, "item": 4})
    both = {BUYS: RING, positive: LABELS, positive[::-1]: LABELS.flip(0)}
    with pytest.raises(ConfigError, match="given already"):
        _dataset("in", both, {"user": 4, "item": 4})
