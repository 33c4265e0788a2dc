"""Single rows of one partition, against those of the whole graph."""

import threading
from typing import Any

import numpy as np
import pytest
import torch

from gigl_loader.dataset.lookup import num_ids_of
from gigl_loader.dataset.partition.partition_view import PartitionView, Rows
from gigl_loader.errors import ConfigError
from gigl_loader.graph_store.server.partition_answers import PartitionAnswers
from gigl_loader.sampler.plan import RowsRequest
from gigl_loader.sampler.rows.packing import PackedInts
from gigl_loader.testing import TinyGraph

GRAPH = TinyGraph.random(40, 200, heterogeneous=True)
BUYS = ("user", "buys", "item")
NUM_PARTS = 3


def _view(rank: int) -> PartitionView[Any]:
    return GRAPH.partitions(NUM_PARTS)[rank].view()


def _answers(rank: int = 0, parts: int = NUM_PARTS) -> PartitionAnswers:
    return PartitionAnswers(GRAPH.partitions(parts)[rank], rank, parts)


def _rows(answers: PartitionAnswers, kind: str, name: Any, ids: list[int], more: Any = None) -> Any:
    request = RowsRequest(kind, name, np.array(ids, np.int64), more)
    return answers.get_rows(request.map(PackedInts.of)).values


def _asked(answers: PartitionAnswers, kind: str, name: Any, ids: list[int]) -> np.ndarray:
    return _rows(answers, kind, name, ids).copy()


@pytest.mark.parametrize("rank", range(NUM_PARTS))
def test_rows_are_those_of_the_ids_in_their_order(rank: int) -> None:
    view, answers = _view(rank), _answers(rank)
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
    answers, found = _answers(), {}
    ids = torch.arange(40)[_view(0).node_books["user"].owner(torch.arange(40)) == 0].tolist()
    _asked(answers, "node_features", "user", ids)  # what a thread has once asked is there
    both = threading.Barrier(2)

    def ask(wanted: list[int]) -> None:
        both.wait(60)
        rows = _rows(answers, "node_features", "user", wanted)
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
    answers, owned = _answers(), _view(0).node_books["user"].owner(torch.arange(40)) == 0
    mine = torch.arange(40)[owned][:1].tolist()
    for kind, name in (("node_books", "user"), ("adjacency", BUYS), ("__class__", "user")):
        with pytest.raises(ConfigError, match="the graph has no"):
            _rows(answers, kind, name, mine)
    with pytest.raises(ConfigError, match=r"the graph has no node features of 'shop'"):
        _rows(answers, "node_features", "shop", mine)
    with pytest.raises(ConfigError, match=r"the graph has no node attributes of 'user'"):
        _rows(answers, "node_attributes", "user", mine, "age")
    assert _rows(answers, "node_attributes", "user", mine, "node_time").shape == (1,)


def test_books_say_who_owns_each_row() -> None:
    told = [{(one.group, one.name): one for one in _answers(r).get_row_books()} for r in range(3)]
    assert set(told[0]) == {
        *(("node", name) for name in GRAPH.num_nodes),
        *(("edge", name) for name in GRAPH.edges),
    }
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
    told = _answers(parts=1).get_row_books()
    numbers = {(one.group, one.name): one.num_ids for one in told}
    assert numbers["node", "user"] == GRAPH.num_nodes["user"]
    assert numbers["edge", BUYS] == len(GRAPH.edges[BUYS])


def test_how_many_ids_a_matrix_stands_for() -> None:
    values = torch.zeros(4, 2)
    assert num_ids_of(Rows(values)) == 4
    assert num_ids_of(Rows(values, index=torch.tensor([0, -1, 1, 2, 3, -1]))) == 6
    assert num_ids_of(Rows(values, ids=torch.tensor([1, 5, 7, 20]))) == 21
    assert num_ids_of(Rows(values[:0], ids=torch.tensor([], dtype=torch.int64))) == 0
    assert num_ids_of(Rows(values, first=10)) == 14
