"""What methods of a storage server return, as it arrives."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gigl_loader._glt import RangePartitionBook
from gigl_loader.dataset.schema import FeatureInfo
from gigl_loader.errors import ProtocolError
from gigl_loader.remote import answers
from gigl_loader.remote.answers import Answer, RowBook
from gigl_loader.transport.codec import decode, encode, read_header

USER = ("user", "buys", "item")
TENSOR = torch.tensor([[1, 2], [3, 4]])
NARROW = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)


def _arrived(message: Any, kind: type) -> Any:
    header, arrays = encode(message)
    _, body, _ = read_header(header)
    return decode(body, [array.copy() for array in arrays], kind)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (answers.Nothing, None),
        (answers.Flag, True),
        (answers.Number, 2**40),
        (answers.Numbers, [1, 2]),
        (answers.Text, "in"),
        (answers.Status, {"pid": 1, "producers": {3: {"failed": None}}}),
        (answers.Sampled, ({"x": NARROW, "n_id": TENSOR}, False)),
        (answers.Sampled, (None, True)),
        (answers.Batch, {"x": NARROW}),
        (answers.NodeCounts, {"user": 3}),
        (answers.EdgeTypes, [USER]),
        (answers.EdgeTypes, None),
        (answers.NodeTypes, None),
        (answers.Ids, TENSOR[0]),
        (answers.Ids, TENSOR[:, 1]),
        (answers.Tensors, {"counts": TENSOR[0], "empty": NARROW[:0]}),
        (answers.ABLPInput, ("user", TENSOR[0], {USER: TENSOR}, {USER: TENSOR})),
        (answers.ABLPInput, ("user", TENSOR[0], {}, None)),
        (answers.FeatureInfos, None),
        (answers.FeatureInfos, {}),
        (answers.FeatureInfos, FeatureInfo(3, torch.bfloat16)),
        (answers.FeatureInfos, {USER: FeatureInfo(1, torch.float64)}),
        (answers.BookAnswer, None),
        (answers.BookAnswer, TENSOR[0]),
    ],
)
def test_what_was_returned_arrives(kind: type[Answer], value: Any) -> None:
    assert _equal(_arrived(kind.of(value), kind).result, value)


def test_books_know_the_same_owners() -> None:
    book = RangePartitionBook([(0, 3), (3, 7), (7, 8)], 1)
    found = _arrived(answers.BookAnswer.of(book), answers.BookAnswer).result
    ids = torch.arange(8)
    assert torch.equal(found[ids], book[ids])
    assert found[ids].tolist() == [0, 0, 0, 1, 1, 1, 1, 2]
    assert found.partition_idx == 1

    rows = [
        RowBook("node", "user", 8, bounds=np.array([3, 7, 8])),
        RowBook("edge", USER, 2, table=np.array([1, 0], np.int8)),
    ]
    found = _arrived(answers.RowBooks.of(rows), answers.RowBooks).result
    assert [(one.group, one.name, one.num_ids) for one in found] == [
        ("node", "user", 8), ("edge", USER, 2),
    ]  # fmt: skip
    assert found[0].bounds.tolist() == [3, 7, 8]
    assert (found[1].table.tolist(), found[1].bounds) == ([1, 0], None)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (answers.Nothing, answers.Flag(True)),
        (answers.Number, answers.Text("1")),
        (answers.Flag, answers.Number(1)),
        (answers.NodeCounts, answers.Status({"user": "many"})),
        (answers.Ids, answers.Number(1)),
    ],
)
def test_an_answer_of_another_type_is_refused(kind: type[Answer], said: Answer) -> None:
    with pytest.raises(ProtocolError):
        _arrived(said, kind)
