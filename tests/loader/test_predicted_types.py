"""Links of an edge type that the graph does not have: they are predicted, and never walked."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import ConfigError, DistDataset, DistLinkNeighborLoader, RemoteDistDataset
from gigl_loader.testing import TinyGraph, check_same_batches, run_cluster

pytestmark = pytest.mark.multiprocess

GRAPH = TinyGraph.random(20, 80, heterogeneous=True)
LIKES = ("user", "likes", "item")
PAIRS = torch.stack([torch.arange(11), (torch.arange(11) * 3 + 1) % 20])
HOW: dict[str, Any] = {"num_neighbors": [3, 2], "batch_size": 4, "seed": 3}


def _partition(rank: int, servers: int) -> DistDataset:
    return GRAPH.partitions(servers)[rank]


def _batches(dataset: Any, **how: Any) -> list[Any]:
    with DistLinkNeighborLoader(dataset, **HOW, **how) as loader:
        return list(loader)


@pytest.mark.parametrize("kind", [None, "binary", "triplet"])
@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_links_are_pairs_of_the_batch_and_no_edges(kind: Any, edge_dir: Any) -> None:
    dataset = GRAPH.dataset(edge_dir=edge_dir)
    walked = {name if edge_dir == "in" else name[::-1] for name in GRAPH.edges}
    given = (LIKES, PAIRS)
    seen: list[torch.Tensor] = []
    for batch in _batches(dataset, edge_label_index=given, neg_sampling=kind, num_workers=0):
        users, items = batch["user"], batch["item"]
        if kind == "triplet":
            pairs = torch.stack([users.src_index, items.dst_pos_index])
            assert items.dst_neg_index.shape == users.src_index.shape
        else:
            pairs = batch[LIKES].edge_label_index
            if kind == "binary":
                count = pairs.size(1) // 2
                assert batch[LIKES].edge_label.tolist() == [1] * count + [0] * count
                pairs = pairs[:, :count]
            assert batch[LIKES].input_id.tolist() == list(
                range(4 * len(seen), 4 * len(seen) + pairs.size(1))
            )
        assert {(src, dst) for src, _, dst in batch.edge_index_dict} == {
            (src, dst) for src, _, dst in walked
        }
        assert LIKES not in batch.edge_index_dict
        assert any(edges.numel() for edges in batch.edge_index_dict.values())
        seen.append(torch.stack([users.n_id[pairs[0]], items.n_id[pairs[1]]]))
    assert torch.cat(seen, 1).equal(PAIRS)


def _at_once(dataset: Any, given: Any, **how: Any) -> Any:
    with DistLinkNeighborLoader(
        dataset, edge_label_index=given, neg_sampling="binary", **HOW, **how
    ) as loader:
        return loader([7, 0, 7])


def _use_store(info: Any, rank: int, expected: list[Any], at_once: Any) -> None:
    dataset = RemoteDistDataset(info, rank)
    given = (LIKES, {0: PAIRS})  # all of one server: batches are those of one machine
    how: dict[str, Any] = {"edge_label_index": given, "neg_sampling": "binary"}
    check_same_batches(expected, _batches(dataset, **how))
    check_same_batches([at_once], [_at_once(dataset, given)])
    with pytest.raises(ConfigError, match=r"strict=True asks .*'likes'.* has none"):
        _batches(dataset, strict=True, **how)


def test_workers_and_a_graph_store_give_the_same(tmp_path: Path) -> None:
    dataset, given = GRAPH.dataset(), (LIKES, PAIRS)
    how: dict[str, Any] = {"edge_label_index": given, "neg_sampling": "binary"}
    here, at_once = _batches(dataset, num_workers=0, **how), _at_once(dataset, given, num_workers=0)
    assert len(here) == 3
    check_same_batches(here, _batches(dataset, **how))
    check_same_batches([at_once], [_at_once(dataset, given)])
    run_cluster(_use_store, here, at_once, dataset=_partition, tmp_path=tmp_path, clients=1)


@pytest.mark.parametrize(
    "given",
    [
        LIKES,  # all edges of it: there are none
        (("user", "item", "item"), None),
        (("user", "likes", "shop"), PAIRS),
        (("user", "shop"), PAIRS),
        (("user", "buys_gigl_positive", "item"), PAIRS),
    ],
)
def test_a_type_that_cannot_be_predicted_is_named(given: Any) -> None:
    with pytest.raises(ConfigError, match="names edge type"):
        _batches(GRAPH.dataset(), edge_label_index=given, num_workers=0)


def test_strict_negatives_need_edges_of_the_type() -> None:
    with pytest.raises(ConfigError, match=r"strict=True asks .*'likes'.* has none"):
        _batches(
            GRAPH.dataset(), edge_label_index=(LIKES, PAIRS), neg_sampling="binary", strict=True
        )
