"""Single rows of one partition, against those of the whole graph."""

import threading
from typing import Any

import numpy as np
import pytest
import torch

from gigl_loader.dataset.view import PartitionView, Rows
from gigl_loader.errors import ConfigError
from gigl_loader.remote.row_answers import RowAnswers, _num_ids
from gigl_loader.sampler.questions import RowsRequest
from gigl_loader.testing import TinyGraph

GRAPH = TinyGraph.random(40, 200, heterogeneous=True)
BUYS = ("user", "buys", "item")
NUM_PARTS = 3


def _view(rank: int) -> PartitionView[Any]:
    return GRAPH.partitions(NUM_PARTS)[rank].view()


def _asked(answers: RowAnswers, kind: str, name: Any, ids: list[int]) -> np.ndarray:
    return answers.rows(RowsRequest(kind, name, np.array(ids, np.int64))).values.copy()


@pytest.mark.parametrize("rank", range(NUM_PARTS))
def test_rows_are_those_of_the_ids_in_their_order(rank: int) -> None:
    view = _view(rank)
    answers = RowAnswers(view)
    for name in ("user", "item"):
        owned = view.node_books[name].owner(torch.arange(40)) == rank
        ids = torch.arange(40)[owned].flip(0).tolist()
        ids += ids[:2]
        features, labels = GRAPH.node_rows(name, ids)
        assert _asked(answers, "node_features", name, ids).tolist() == features
        assert _asked(answers, "node_labels", name, ids).tolist() == labels
        assert _asked(answers, "node_features", name, []).shape == (0, len(features[0]))
    book = view.edge_books[BUYS]
    ids = torch.arange(book.num_ids)[book.owner(torch.arange(book.num_ids)) == rank].tolist()
    assert _asked(answers, "edge_features", BUYS, ids).tolist() == GRAPH.edge_rows(BUYS, ids)


def test_each_thread_answers_in_memory_of_its_own() -> None:
    """The rows of one connection are not written over by the question of another one."""
    answers, found = RowAnswers(_view(0)), {}
    ids = torch.arange(40)[_view(0).node_books["user"].owner(torch.arange(40)) == 0].tolist()
    _asked(answers, "node_features", "user", ids)  # what a thread has once asked is there
    both = threading.Barrier(2)

    def ask(wanted: list[int]) -> None:
        both.wait(60)
        rows = answers.rows(RowsRequest("node_features", "user", np.array(wanted))).values
        both.wait(60)
        found[tuple(wanted)] = rows.tolist()

    threads = [threading.Thread(target=ask, args=(one,)) for one in (ids[:3], ids[3:6])]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == {tuple(one): GRAPH.node_rows("user", list(one))[0] for one in found}
    assert len(found) == 2


def test_only_rows_can_be_named() -> None:
    """The view has other attributes, of which a stranger could ask for any."""
    answers = RowAnswers(_view(0))
    for kind, name in (("node_books", "user"), ("adjacency", BUYS), ("__class__", "user")):
        with pytest.raises(ConfigError, match="the graph has no"):
            answers.matrix(RowsRequest(kind, name, np.zeros(1, np.int64)))
    with pytest.raises(ConfigError, match=r"the graph has no node features of 'shop'"):
        answers.matrix(RowsRequest("node_features", "shop", np.zeros(1, np.int64)))
    with pytest.raises(ConfigError, match=r"the graph has no node attributes of 'user'"):
        answers.matrix(
            RowsRequest("node_attributes", "user", np.zeros(1, np.int64), attribute="age")
        )
    of_time = RowsRequest("node_attributes", "user", np.zeros(1, np.int64), attribute="node_time")
    assert answers.matrix(of_time).values.shape[1:] == ()


def test_books_say_who_owns_each_row() -> None:
    told = [{(one.group, one.name): one for one in RowAnswers(_view(r)).books()} for r in range(3)]
    assert set(told[0]) == {
        *(("node", name) for name in GRAPH.num_nodes), *(("edge", name) for name in GRAPH.edges)
    }  # fmt: skip
    for (group, name), book in told[0].items():
        view = _view(0)
        books: Any = view.node_books if group == "node" else view.edge_books
        expected = books[name]
        assert book.num_ids == expected.num_ids
        for part in ("bounds", "table"):
            want, found = getattr(expected, part), getattr(book, part)
            assert (want is None) == (found is None)
            assert want is None or np.array_equal(found, want)


def test_books_of_one_partition_have_the_number_of_rows_alone() -> None:
    told = RowAnswers(GRAPH.partitions(1)[0].view()).books()
    numbers = {(one.group, one.name): one.num_ids for one in told}
    assert numbers["node", "user"] == GRAPH.num_nodes["user"]
    assert numbers["edge", BUYS] == len(GRAPH.edges[BUYS])


def test_how_many_ids_a_matrix_stands_for() -> None:
    values = torch.zeros(4, 2)
    assert _num_ids(Rows(values)) == 4
    assert _num_ids(Rows(values, index=torch.tensor([0, -1, 1, 2, 3, -1]))) == 6
    assert _num_ids(Rows(values, ids=torch.tensor([1, 5, 7, 20]))) == 21
    assert _num_ids(Rows(values[:0], ids=torch.tensor([], dtype=torch.int64))) == 0
    assert _num_ids(Rows(values, first=10)) == 14
