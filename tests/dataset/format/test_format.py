"""The bytes of directories that `partition_graph` and `split_partitions` write never change."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import partition_graph
from gigl_loader.partitioning.split_links import split_partitions
from tests.dataset.dataset_reference import BUYS, RING, SHOP, E, Graph, ring
from tests.support.format_digest import format_digest


def _with_all() -> Any:
    """Return a graph with features, labels, weights, masks, times, label edges, and attributes."""
    data = SHOP.to_pyg()
    data["user"].age = torch.arange(5).half()
    data["item"].time = torch.tensor([5, 3, 9, 7])
    data[BUYS].price = torch.arange(8.0).reshape(4, 2)
    data[BUYS].weights = torch.arange(4) / 8
    return data


def _write(root: Path, graph: Any, count: int, supervision: Any, **options: Any) -> None:
    partition_graph(graph, count, root, supervision=supervision, progress=False, **options)


CASES: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "ring": (RING, 2, {}),
    "ring-one": (RING, 1, {"edge_dir": "out"}),
    "ring-random": (RING, 3, {"method": "random", "seed": 5}),
    "ring-flat": (ring, 2, {"time_attr": "time"}),
    "ring-degree": (ring, 2, {"order": "degree", "method": "random"}),
    "ring-int8": (RING, 2, {"feature_dtype": "int8"}),
    "shop": (SHOP, 2, {"method": "random"}),
    "all": (_with_all, 2, {"time_attr": "time", "edge_dir": "out"}),
    "all-degree": (_with_all, 3, {"order": "degree"}),
    "glt-ring": (RING, 2, {"format": "glt"}),
    "glt-flat": (ring, 1, {"format": "glt"}),
    "glt-shop": (SHOP, 2, {"format": "glt", "method": "random"}),
    "glt-all": (_with_all, 2, {"format": "glt", "edge_dir": "out"}),
}
WRITTEN = {
    "ring": "f0d6f9a7cab09891",
    "ring-one": "92b4ef3ef2b8b848",
    "ring-random": "754c10d744520579",
    "ring-flat": "cc934096d831f748",
    "ring-degree": "e254bb192c59b393",
    "ring-int8": "cfac60815f0ae42a",
    "shop": "4ab1535b012f0552",
    "all": "a7424adfa66ef750",
    "all-degree": "f8854dc077a2a763",
    "glt-ring": "8d15e00bd3ddfe3c",
    "glt-flat": "32142fd1564b356b",
    "glt-shop": "817a5c09c682a051",
    "glt-all": "a63cd26517ba9664",
}
SPLIT = {
    "ring-random": "a48b838ead36e627",
    "ring-degree": "eb81e33f22ec09db",
    "glt-ring": "5354d7bf8f228a24",
    "glt-flat": "8497d0749531004d",
}


@pytest.mark.parametrize("name", CASES)
def test_a_directory_has_the_bytes_that_it_always_had(tmp_path: Path, name: str) -> None:
    graph, count, options = CASES[name]
    supervision = SHOP.supervision() if "all" in name else None
    if isinstance(graph, Graph):
        graph, supervision = graph.to_pyg(), graph.supervision()
    else:
        graph = graph()
    _write(tmp_path / "graph", graph, count, supervision, **options)
    assert format_digest(tmp_path / "graph") == WRITTEN[name]


@pytest.mark.parametrize("name", SPLIT)
def test_a_split_directory_has_the_bytes_that_it_always_had(tmp_path: Path, name: str) -> None:
    graph, count, options = CASES[name]
    graph = graph.to_pyg() if isinstance(graph, Graph) else graph()
    _write(tmp_path / "graph", graph, count, None, **options)
    split_partitions(
        tmp_path / "graph", tmp_path / "split", E, num_val=0.2, disjoint_train_ratio=0.3
    )
    assert format_digest(tmp_path / "split") == SPLIT[name]
