"""What prints: one line, with sizes, without tensors and without names that nobody gave."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    ABLPInputNodes,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    FeaturePartitionData,
    FeatureStoreOptions,
    GiglLoaderError,
    GraphPartitionData,
    GraphStoreInfo,
    NodeEmbeddings,
    PartitionOutput,
    PPRSamplerOptions,
    RemoteDistDataset,
    message_passing_to_positive_label,
    partition_graph,
    split_links,
)
from gigl_loader.dataset.schema import edge_type_str
from gigl_loader.errors import without_default_types

BUYS = ("user", "buys", "item")
RING = Data(x=torch.ones(4, 2), edge_index=torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]))
LINKS = torch.tensor([[0, 1], [2, 3]])
TRAIN, VAL = torch.tensor([True, True, False, False]), torch.tensor([False, False, False, True])


def _shop() -> HeteroData:
    data = HeteroData()
    data["user"].x, data["item"].x = torch.ones(3, 1), torch.ones(5, 1)
    data[BUYS].edge_index = torch.tensor([[0, 1], [4, 3]])
    return data


def _store(**more: Any) -> RemoteDistDataset:
    info = GraphStoreInfo(3, 1, 1, "a", "storage0", "c", 1, 2, 3, 29600, 5)
    return RemoteDistDataset(info, 0, **more)


WITH_SCHEMA = _store()
WITH_SCHEMA._schema = DistDataset.from_pyg(_shop()).schema
SPLIT_SHOP = _shop()
SPLIT_SHOP["user"].train_mask = torch.tensor([True, False, True])
PRINTED: list[tuple[object, str]] = [
    (DistDataset(1, 2), "DistDataset(partition 1 of 2, empty)"),
    (DistDataset.from_pyg(RING), "DistDataset(partition 0 of 1, nodes=4, edges=4)"),
    (
        DistDataset.from_pyg(RING, supervision=(LINKS, None)),
        "DistDataset(partition 0 of 1, nodes=4, edges=4, labels=2)",
    ),
    (
        DistDataset.from_pyg(_shop()),
        "DistDataset(partition 0 of 1, nodes={'user': 3, 'item': 5}, "
        "edges={'user__buys__item': 2})",
    ),
    (
        DistDataset.from_pyg(Data(edge_index=RING.edge_index, train_mask=TRAIN, val_mask=VAL)),
        "DistDataset(partition 0 of 1, nodes=4, edges=4, train=2, val=1)",
    ),
    (
        DistDataset.from_pyg(SPLIT_SHOP),
        "DistDataset(partition 0 of 1, nodes={'user': 3, 'item': 5}, "
        "edges={'user__buys__item': 2}, train={'user': 2})",
    ),
    (
        DistDataset.from_pyg(
            Data(edge_index=RING.edge_index, train_mask=TRAIN), supervision=(LINKS, None)
        ),
        "DistDataset(partition 0 of 1, nodes=4, edges=4, labels=2, train=2)",
    ),
    (
        DistDataset.from_pyg(RING, supervision=(LINKS, None)).schema,
        "DatasetSchema(is_homogeneous_with_labeled_edge_type=True, edge_types=[(the only type), "
        "'to_gigl_positive'], node_feature_info={(the only type): FeatureInfo(dim=2, "
        "dtype=torch.float32)}, edge_feature_info=None, edge_dir='in')",
    ),
    (
        DistDataset.from_pyg(_shop()).schema,
        f"DatasetSchema(is_homogeneous_with_labeled_edge_type=False, edge_types=[{BUYS}], "
        "node_feature_info={'user': FeatureInfo(dim=1, dtype=torch.float32), "
        "'item': FeatureInfo(dim=1, dtype=torch.float32)}, edge_feature_info=None, "
        "edge_dir='in')",
    ),
    (_store(), "RemoteDistDataset(servers=3 at storage0:29600)"),
    (WITH_SCHEMA, "RemoteDistDataset(servers=3 at storage0:29600, edge types=1)"),
    (
        ABLPInputNodes(LINKS[0], "user", {BUYS: (LINKS, None)}),
        f"ABLPInputNodes(anchors=2, 'user', {BUYS})",
    ),
    (
        ABLPInputNodes(
            LINKS[0], DEFAULT_HOMOGENEOUS_NODE_TYPE, {DEFAULT_HOMOGENEOUS_EDGE_TYPE: (LINKS, None)}
        ),
        "ABLPInputNodes(anchors=2, (the only type), (the only type))",
    ),
    (GraphPartitionData(LINKS, weights=torch.ones(2)), "GraphPartitionData(edges=2, weights)"),
    (FeaturePartitionData(RING.x), "FeaturePartitionData([4, 2] torch.float32)"),
    (FeaturePartitionData(LINKS, LINKS[0]), "FeaturePartitionData([2, 2] torch.int64, ids)"),
    (
        PartitionOutput(partitioned_edge_index=GraphPartitionData(LINKS)),
        "PartitionOutput(partitioned_edge_index)",
    ),
    (
        NodeEmbeddings(LINKS[0], torch.ones(2, 3), Path("out/0.npy")),
        "NodeEmbeddings(nodes=2, width=3, torch.float32, 'out/0.npy')",
    ),
]


@pytest.mark.parametrize(("value", "text"), PRINTED, ids=[text for _, text in PRINTED])
def test_what_prints(value: object, text: str) -> None:
    assert repr(value) == text


def test_the_names_of_the_only_types_are_replaced() -> None:
    label = message_passing_to_positive_label(DEFAULT_HOMOGENEOUS_EDGE_TYPE)
    types = [DEFAULT_HOMOGENEOUS_NODE_TYPE, DEFAULT_HOMOGENEOUS_EDGE_TYPE, label, BUYS]
    assert without_default_types(f"of {types}") == (
        f"of [(the only type), (the only type), 'to_gigl_positive', {BUYS}]"
    )
    texts = [edge_type_str(DEFAULT_HOMOGENEOUS_EDGE_TYPE), edge_type_str(label)]
    assert without_default_types(f"{texts[0]}: {texts[1]}.") == "(the only type): to_gigl_positive."
    option = "{[default_homogeneous_node_type, to, default_homogeneous_node_type]: [2]}"
    assert without_default_types(option) == "{(the only type): [2]}"
    assert without_default_types(f"nodes of {DEFAULT_HOMOGENEOUS_NODE_TYPE}") == (
        "nodes of (the only type)"
    )
    for path in (
        f"node_features/{DEFAULT_HOMOGENEOUS_NODE_TYPE}/values",
        f"part0/edges/{texts[0]}/indices.bin",
        f"ids/{DEFAULT_HOMOGENEOUS_NODE_TYPE}.parquet",
        f"part0/node_labels/{DEFAULT_HOMOGENEOUS_NODE_TYPE}.bin",
    ):
        assert without_default_types(path) == path, "a file has to be found under its name"


def _wrong_inputs(folder: Path) -> dict[str, Any]:
    data = DistDataset.from_pyg(RING)
    labeled = DistDataset.from_pyg(RING, supervision=(LINKS, None))
    seeds = torch.arange(4)

    def loader(**how: Any) -> Any:
        return lambda: DistNeighborLoader(data, [2], how.pop("input_nodes", seeds), **how)

    store = FeatureStoreOptions("a.B", node_types=("user",))
    halves = PartitionOutput(
        node_partition_book=torch.zeros(4, dtype=torch.int64),
        partitioned_edge_index=GraphPartitionData(LINKS + 7),
    )
    return {
        "no weights": loader(with_weight=True),
        "no weight attribute": loader(weight_attr="w"),
        "no times": loader(time_attr="t"),
        "seeds without times": loader(time_attr="x"),
        "a type of seeds": loader(input_nodes=("user", seeds)),
        "seeds out of range": loader(input_nodes=seeds + 1),
        "a fanout by type": lambda: DistNeighborLoader(labeled, {BUYS: [1]}, seeds),
        "a feature store": loader(feature_store=store),
        "a channel": loader(sampler_options=PPRSamplerOptions(typed_channel_ratios={BUYS: 1.0})),
        "a type of links": lambda: DistLinkNeighborLoader(data, [2], (BUYS, LINKS)),
        "links out of range": lambda: DistLinkNeighborLoader(data, [2], LINKS + 9),
        "no labels": lambda: DistABLPLoader(data, [2], seeds),
        "labels of another type": lambda: DistABLPLoader(
            labeled, [2], seeds, supervision_edge_type=BUYS
        ),
        "features of a type": lambda: data.get_features(seeds, "user"),
        "rows that are not there": lambda: data.get_features(seeds + 9),
        "links to split": lambda: split_links(RING, BUYS),
        "links that are turned": lambda: split_links(RING, rev_edge_types=BUYS),
        "a type to quantise": lambda: partition_graph(
            RING, 1, folder / "parts", feature_dtype={"user": "int8"}, progress=False
        ),
        "a partition's edges": lambda: DistDataset(0, 1).build(partition_output=halves),
        "a book": lambda: DistDataset.from_pyg(RING, partition_book=torch.zeros(3).long()),
        "supervision": lambda: DistDataset.from_pyg(RING, supervision={BUYS: (LINKS, None)}),
    }


def test_messages_do_not_name_types_that_nobody_named(tmp_path: Path) -> None:
    """On a graph of one type; nothing is started."""
    quiet, found = [], {}
    for case, wrong in _wrong_inputs(tmp_path).items():
        try:
            wrong()
        except GiglLoaderError as error:
            found[case] = str(error)
        else:
            quiet.append(case)
    assert not quiet
    assert not {case: text for case, text in found.items() if "default_homogeneous" in text}


def test_a_warning_does_not_name_them(recwarn: pytest.WarningsRecorder) -> None:
    data = Data(x=RING.x, edge_index=RING.edge_index, notes=SimpleNamespace())
    DistDataset.from_pyg(data)
    assert not [one for one in recwarn if "default_homogeneous" in str(one.message)]


def _loader(data: Data | HeteroData, fanouts: Any, seeds: Any) -> DistNeighborLoader:
    return DistNeighborLoader(DistDataset.from_pyg(data), fanouts, seeds, num_workers=0)


def test_a_loader_shows_its_fan_outs() -> None:
    with _loader(RING, [2, 1], torch.arange(4)) as loader:
        assert "batches=4, num_neighbors=[2, 1], batch_size=1, " in repr(loader)
    shop = _shop()
    shop["item", "of", "user"].edge_index = shop[BUYS].edge_index.flip(0)
    for fanouts, text in (
        ([2, 1], "[2, 1]"),
        (
            {BUYS: [2, 1], ("item", "of", "user"): [3, 0]},
            "{'user__buys__item': [2, 1], 'item__of__user': [3, 0]}",
        ),
    ):
        with _loader(shop, fanouts, ("user", torch.arange(3))) as loader:
            assert f"num_neighbors={text}, " in repr(loader)
