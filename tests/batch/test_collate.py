"""Messages to `Data` and `HeteroData`: which name each field has there, and that none is copied."""

import torch

from gigl_loader.batch.collate import batch_types, to_data, to_hetero_data
from gigl_loader.batch.message import (
    BATCH,
    EDGE,
    EDGE_FEATURES,
    EDGE_INDEX,
    EDGES_PER_HOP,
    INPUT_ID,
    META,
    NODE,
    NODE_FEATURES,
    NODES_PER_HOP,
    SEED_TIME,
    TREE,
    declared,
    key,
)
from gigl_loader.dataset.schema import PPR, DatasetSchema, message_passing_to_positive_label

BUYS, KNOWS = ("user", "buys", "item"), ("user", "knows", "user")


def _schema() -> DatasetSchema:
    return DatasetSchema(
        is_homogeneous_with_labeled_edge_type=False,
        edge_types=[BUYS, KNOWS, message_passing_to_positive_label(BUYS)],
        node_feature_info=None,
        edge_feature_info=None,
        edge_dir="in",
    )


def test_a_homogeneous_batch_has_pygs_names_and_glts() -> None:
    message = {
        NODE: torch.tensor([7, 3, 5]),
        BATCH: torch.tensor([7, 3]),
        INPUT_ID: torch.tensor([1, 0]),
        NODE_FEATURES: torch.ones(3, 2),
        EDGE_INDEX: torch.tensor([[2, 1], [0, 0]]),
        EDGE: torch.tensor([9, 4]),
        NODES_PER_HOP: torch.tensor([2, 1]),
        EDGES_PER_HOP: torch.tensor([2]),
        META + "mapping": torch.tensor([0, 1]),
        declared("node", "age"): torch.tensor([4, 5, 6]),
        declared("edge", "pair_index"): torch.tensor([[1, 2], [3, 4], [5, 6]]),
    }
    data = to_data(message)
    assert data.n_id is data.node is message[NODE]
    assert data.e_id is data.edge is message[EDGE]
    assert data.x is message[NODE_FEATURES]
    assert data.edge_index is message[EDGE_INDEX]
    assert data.batch_size == 2
    assert (data.num_sampled_nodes, data.num_sampled_edges) == ([2, 1], [2])
    assert data.mapping.tolist() == [0, 1]
    assert data.age is message[declared("node", "age")]
    # PyG concatenates what is called an index along its last dimension: rows go there
    assert data.pair_index.tolist() == [[1, 3, 5], [2, 4, 6]]


def test_without_rows_the_number_of_nodes_is_said() -> None:
    message = {NODE: torch.tensor([7, 3]), EDGE_INDEX: torch.empty(2, 0, dtype=torch.int64)}
    assert to_data(message)._store["num_nodes"] == 2
    assert "num_nodes" not in to_data({**message, NODE_FEATURES: torch.ones(2, 1)})._store
    assert "num_sampled_nodes" not in to_data(message)


def test_trees_take_the_name_of_the_seeds() -> None:
    message = {
        NODE: torch.tensor([7, 3, 7]),
        TREE: torch.tensor([0, 1, 1]),
        INPUT_ID: torch.tensor([4, 2]),
        SEED_TIME: torch.tensor([10, 20]),
    }
    data = to_data(message)
    assert data.batch.tolist() == [0, 1, 1]
    assert data.batch_size == 2
    assert data.seed_time.tolist() == [10, 20]


def test_types_that_a_batch_has_whatever_was_drawn() -> None:
    nodes, edges = batch_types({}, _schema(), "in")
    assert (nodes, edges) == (["item", "user"], [BUYS, KNOWS])  # no label edges
    # nodes reached along out-edges are destinations: the reversed types fit rows 0 and 1
    # (one that connects a type with itself keeps its name, as in GLT)
    assert batch_types({}, _schema(), "out")[1] == [("item", "rev_buys", "user"), KNOWS]


def test_a_sampler_that_makes_edges_leaves_out_those_it_did_not_follow() -> None:
    made = ("user", PPR, "item")
    message = {key(EDGE_INDEX, made): torch.empty(2, 0), key(EDGE_INDEX, KNOWS): torch.empty(2, 0)}
    assert batch_types(message, _schema(), "in")[1] == [KNOWS, made]


def test_a_heterogeneous_batch_counts_by_store_and_over_all_types() -> None:
    message = {
        key(NODE, "user"): torch.tensor([1, 2]),
        key(NODE, "item"): torch.tensor([8]),
        key(BATCH, "user"): torch.tensor([1]),
        key(NODES_PER_HOP, "user"): torch.tensor([1, 1]),
        key(NODES_PER_HOP, "item"): torch.tensor([0, 1]),
        key(EDGE_INDEX, KNOWS): torch.tensor([[1], [0]]),
        key(EDGE_FEATURES, KNOWS): torch.ones(1, 3),
        key(EDGES_PER_HOP, KNOWS): torch.tensor([1]),
        key(EDGE_INDEX, BUYS): torch.empty(2, 0, dtype=torch.int64),
        key(declared("edge", "age"), KNOWS): torch.tensor([6]),
        key(declared("node", "age"), "item"): torch.tensor([2]),
    }
    data = to_hetero_data(message, ["item", "user"], [BUYS, KNOWS])
    assert data.num_sampled_nodes == {"item": [0, 1], "user": [1, 1]}
    assert data.num_sampled_edges == {KNOWS: [1]}  # BUYS was not counted
    assert data["user"].batch_size == 1
    assert "batch_size" not in data["item"]
    assert data[KNOWS].edge_attr.shape == (1, 3)
    assert data[BUYS].edge_index.shape == (2, 0)
    assert (data[KNOWS].age.tolist(), data["item"].age.tolist()) == ([6], [2])
    assert "age" not in data["user"]
