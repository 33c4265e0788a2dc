"""Tables by type: which ones make a graph."""

from typing import Any

import pytest

from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    EdgeType,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.partitioning.tables.spec import (
    EdgeTable,
    NodeTable,
    columns_of,
    is_npy,
    read_graph,
)

INT8: Any = "int8"
NODES, EDGES = NodeTable("nodes"), EdgeTable("edges")
BUYS = ("user", "buys", "item")


def test_one_type_has_the_default_names() -> None:
    graph = read_graph(NODES, [EDGES, EdgeTable("held", supervision="positive")])
    label = message_passing_to_positive_label(DEFAULT_HOMOGENEOUS_EDGE_TYPE)
    assert not graph.heterogeneous
    assert list(graph.nodes) == [DEFAULT_HOMOGENEOUS_NODE_TYPE]
    assert list(graph.edges) == [DEFAULT_HOMOGENEOUS_EDGE_TYPE, label]
    assert graph.walked == [DEFAULT_HOMOGENEOUS_EDGE_TYPE]


MAYBE: Any = "maybe"


def test_several_types_keep_their_order_and_labels_have_types_of_their_own() -> None:
    wrong = EdgeTable("wrong", supervision="negative")
    given: dict[EdgeType, Any] = {("item", "of", "user"): EDGES, BUYS: [wrong, EDGES]}
    graph = read_graph({"user": NODES, "item": NODES}, given)
    assert graph.heterogeneous
    label = message_passing_to_negative_label(BUYS)
    assert list(graph.edges) == [("item", "of", "user"), label, BUYS]
    assert graph.edges[label] is wrong
    assert graph.walked == [("item", "of", "user"), BUYS]
    assert read_graph({"user": NODES}, {("user", "x", "user"): EDGES}).heterogeneous


@pytest.mark.parametrize(
    ("nodes", "edges", "error", "text"),
    [
        ({"user": NODES}, EDGES, WrongTypeError, "edges must be a dict by edge type"),
        (EDGES, EDGES, WrongTypeError, "must be a NodeTable, got EdgeTable"),
        (NODES, [NODES], WrongTypeError, "must be a EdgeTable, got NodeTable"),
        (NODES, [EDGES, EDGES], ConfigError, "two tables of"),
        (NODES, EdgeTable("e", supervision="positive"), ConfigError, "give edges to sample"),
        (NODES, [EDGES, EdgeTable("e", supervision=MAYBE)], ConfigError, "got 'maybe'"),
        (
            NODES,
            [EDGES, EdgeTable("e", supervision="positive", time="t")],
            ConfigError,
            "leave them",
        ),
        ({"a/b": NODES}, {}, ConfigError, "'a/b' cannot be the name of a file"),
        ({"..": NODES}, {}, ConfigError, "cannot be the name of a file"),
        ({3: NODES}, {}, ConfigError, "cannot be the name of a file"),
        ({"a": NODES}, {"buys": EDGES}, WrongTypeError, "an edge type is .*got 'buys'"),
        ({"a": NODES}, {("a", "to", "b"): EDGES}, ConfigError, r"'b', of .* \(there are \['a'\]"),
        (NodeTable("n", features="x", feature_dtype=INT8), EDGES, ConfigError, "got 'int8'"),
        (NODES, EdgeTable("e", feature_dtype="float16"), ConfigError, "given, and no features"),
    ],
)
def test_tables_that_make_no_graph(nodes: Any, edges: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        read_graph(nodes, edges)


def test_columns() -> None:
    assert [columns_of(one) for one in (None, "a", ("a", "b"))] == [[], ["a"], ["a", "b"]]
    assert [is_npy(one) for one in ("x.npy", "x", ["x.npy"], None)] == [True, False, False, False]
