"""What methods of a storage server return, as it arrives."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gigl_loader.dataset.schema import FeatureInfo
from gigl_loader.errors import ProtocolError
from gigl_loader.graph_store.wire.requests import RowBook
from gigl_loader.graph_store.wire.signatures import CALLS
from gigl_loader.runtime.transport.codec import decode, encode, read_header
from tests.support.glt import RangePartitionBook

USER = ("user", "buys", "item")
TENSOR = torch.tensor([[1, 2], [3, 4]])
NARROW = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)


def _arrived(name: str, value: Any, said_by: str | None = None) -> Any:
    """Return what a client gets where the server responds with ``value``."""
    header, arrays = encode(CALLS[said_by or name].respond(value))
    _, body, _ = read_header(header)
    call = CALLS[name]
    return call.result(decode(body, [array.copy() for array in arrays], call.response))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("destroy_sampling_producer", None),
        ("start_new_epoch_sampling", True),
        ("ping", 2**40),
        ("get_free_ports", [1, 2]),
        ("get_edge_dir", "in"),
        ("status", {"pid": 1, "producers": {3: {"failed": None}}}),
        ("fetch_one_sampled_message", ({"x": NARROW, "n_id": TENSOR}, False)),
        ("fetch_one_sampled_message", (None, True)),
        ("sample_seeds", {"x": NARROW}),
        ("get_num_nodes", {"user": 3}),
        ("get_edge_types", [USER]),
        ("get_edge_types", None),
        ("get_node_types", None),
        ("get_node_ids", TENSOR[0]),
        ("get_node_ids", TENSOR[:, 1]),
        ("get_edges", {"counts": TENSOR[0], "empty": NARROW[:0]}),
        ("get_ablp_input", ("user", TENSOR[0], {USER: TENSOR}, {USER: TENSOR})),
        ("get_ablp_input", ("user", TENSOR[0], {}, None)),
        ("get_node_feature_info", None),
        ("get_node_feature_info", {}),
        ("get_node_feature_info", FeatureInfo(3, torch.bfloat16)),
        ("get_node_feature_info", {USER: FeatureInfo(1, torch.float64)}),
        ("get_node_partition_book", None),
        ("get_node_partition_book", TENSOR[0]),
    ],
)
def test_what_was_returned_arrives(name: str, value: Any) -> None:
    assert _equal(_arrived(name, value), value)


def test_books_know_the_same_owners() -> None:
    book = RangePartitionBook([(0, 3), (3, 7), (7, 8)], 1)
    found = _arrived("get_node_partition_book", book)
    ids = torch.arange(8)
    assert torch.equal(found[ids], book[ids])
    assert found[ids].tolist() == [0, 0, 0, 1, 1, 1, 1, 2]
    assert found.partition_idx == 1

    rows = [
        RowBook("node", "user", 8, bounds=np.array([3, 7, 8])),
        RowBook("edge", USER, 2, table=np.array([1, 0], np.int8)),
    ]
    found = _arrived("get_row_books", rows)
    assert [(one.group, one.name, one.num_ids) for one in found] == [
        ("node", "user", 8),
        ("edge", USER, 2),
    ]
    assert found[0].bounds.tolist() == [3, 7, 8]
    assert (found[1].table.tolist(), found[1].bounds) == ([1, 0], None)


@pytest.mark.parametrize(
    ("name", "said_by", "value"),
    [
        ("destroy_sampling_producer", "start_new_epoch_sampling", True),
        ("ping", "get_edge_dir", "1"),
        ("start_new_epoch_sampling", "ping", 1),
        ("get_num_nodes", "status", {"user": "many"}),
        ("get_node_ids", "ping", 1),
    ],
)
def test_a_response_of_another_type_is_refused(name: str, said_by: str, value: Any) -> None:
    with pytest.raises(ProtocolError):
        _arrived(name, value, said_by)
