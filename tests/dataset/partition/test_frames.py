"""Rows of mixed types as arrays, and back: every kind, every missing value, and what is refused."""

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch_frame import TensorFrame, stype
from torch_frame.data import MultiNestedTensor

from gigl_loader import ConfigError
from gigl_loader.dataset.partition.frames import (
    MOST_VALUES,
    FrameGroup,
    as_columns,
    as_json,
    attributes_of,
    to_frame,
)
from tests.support.frames import KINDS, random_frame, same


@given(
    kinds=st.permutations(KINDS),
    count=st.integers(0, 6),
    columns=st.integers(1, 3),
    num_rows=st.integers(0, 8),
    seed=st.integers(0, 1000),
    taken=st.lists(st.integers(0, 7), max_size=20),
)
@example(kinds=[*KINDS], count=6, columns=2, num_rows=0, seed=0, taken=[])
def test_rows_come_back_bit_for_bit(
    kinds: list[str], count: int, columns: int, num_rows: int, seed: int, taken: list[int]
) -> None:
    frame = random_frame(num_rows, seed, kinds[:count], columns)
    described, arrays = as_columns(frame, "data.tf")
    assert set(attributes_of(described)) == set(arrays)
    ids = torch.tensor([k for k in taken if k < num_rows], dtype=torch.int64)
    rows = {name: values[ids] for name, values in arrays.items()}
    assert all(
        values.device.type == "cpu" and len(values) == num_rows for values in arrays.values()
    )
    found, wanted = to_frame(described, rows, len(ids)), frame[ids]
    assert len(found) == len(ids)
    assert list(found.col_names_dict.items()) == list(frame.col_names_dict.items())
    if num_rows:  # PyTorch Frame does not take rows of none
        assert count == 0 or same(found, wanted)


def test_each_kind_is_stored_in_few_bytes() -> None:
    described, arrays = as_columns(random_frame(9, 0), "data.tf")
    dtypes = {name: str(values.dtype).removeprefix("torch.") for name, values in arrays.items()}
    assert dtypes == {
        "tf-rows": "uint8",
        "tf-embedding": "float32",
        "tf-multicategorical": "int32",
        "tf-multicategorical-lengths": "int32",
        "tf-sequence_numerical": "float32",
        "tf-sequence_numerical-lengths": "int32",
    }
    assert {group.kind: (*group.widths, group.dtype) for group in described} == {
        "timestamp": (7, 7, "int16"),
        "numerical": (1, 1, "float32"),
        "categorical": (1, 1, "int32"),
        "embedding": (1, 2, "float32"),
        "multicategorical": (3, 3, "int32"),
        "sequence_numerical": (3, 3, "float32"),
    }
    # two of 4 bytes, twice, and two times of seven numbers; 4 bytes make whole words of it
    assert arrays["tf-rows"].shape == (9, 2 * 4 + 2 * 4 + 2 * 14 + 4)
    one = as_columns(random_frame(9, 0, ["categorical"], columns=1), "data.tf")[1]
    assert one["tf-rows"].shape == (9, 4), "not a whole word"
    assert as_json({}) == {}, "manifests of other graphs stay as they were"
    group: Any = {"kind": "numerical", "columns": ("b",), "widths": (1,), "dtype": "float32"}
    assert as_json({"a": (FrameGroup(**group),)}) == {"frames": {"a": [group]}}


@pytest.mark.parametrize(
    "dtype", ["float64", "float16", "bfloat16", "int64", "uint8", "bool", "complex128"]
)
def test_kinds_side_by_side_keep_their_types_and_bits(dtype: str) -> None:
    frame = random_frame(7, 0, ["numerical", "categorical", "timestamp"])
    numbers = torch.arange(-7, 7).view(7, 2).to(getattr(torch, dtype))
    frame.feat_dict[stype.numerical] = numbers
    described, arrays = as_columns(frame, "data.tf")
    rows = arrays["tf-rows"]
    assert rows.size(1) % max(8, numbers.element_size()) == 0, "whole words"
    at = torch.tensor([5, 0, 5])
    found = to_frame(described, {"tf-rows": rows[at]}, 3)
    assert found.feat_dict[stype.numerical].dtype == numbers.dtype
    assert same(found, frame[at])
    assert found.get_col_feat(frame.col_names_dict[stype.categorical][1]).shape == (3, 1)
    found.col_names_dict[stype.numerical].append("another")
    assert same(to_frame(described, {"tf-rows": rows[at]}, 3), frame[at]), "nothing is shared"


@pytest.mark.parametrize("dtype", ["", "float7"])
def test_a_type_that_is_not_known_is_of_another_version(dtype: str) -> None:
    with pytest.raises(ValueError, match=f"{dtype}': other versions .*partition the graph again"):
        FrameGroup("numerical", ("b",), (1,), dtype)


@pytest.mark.parametrize(
    ("kind", "value"), [("categorical", 2**31), ("timestamp", 2**15), ("timestamp", -(2**15) - 1)]
)
def test_integers_that_do_not_fit_keep_all_bits(kind: str, value: int) -> None:
    frame = random_frame(5, 0, [kind])
    values = frame.feat_dict[stype(kind)]
    values.view(-1)[3] = value
    described, arrays = as_columns(frame, "data.tf")
    assert {group.kind: group.dtype for group in described}[kind] == "int64"
    assert same(to_frame(described, arrays, 5), frame)


def _texts() -> TensorFrame:
    cells = MultiNestedTensor.from_tensor_mat([[torch.tensor([1, 2])]])
    return TensorFrame({stype.text_tokenized: {"ids": cells}}, {stype.text_tokenized: ["name"]})


def _vectors(kind: stype) -> TensorFrame:
    return TensorFrame({kind: torch.zeros(2, 1, 3)}, {kind: ["photo"]})


def _long(length: int) -> TensorFrame:
    cells = [[torch.zeros(2), torch.zeros(1)], [torch.zeros(0), torch.zeros(length)]]
    return TensorFrame(
        {stype.sequence_numerical: MultiNestedTensor.from_tensor_mat(cells)},
        {stype.sequence_numerical: ["short", "long"]},
    )


@pytest.mark.parametrize(
    ("frame", "match"),
    [
        (_texts(), r"data\['a'\].tf: columns \['name'\] are text_tokenized .* text_embedded"),
        (_vectors(stype.text_embedded), r"\['photo'\] are text_embedded.*with an embedder"),
        (_vectors(stype.image_embedded), r"\['photo'\] are image_embedded.*with an embedder"),
        (_vectors(stype.embedding), r"are embedding \(as Tensor\).*col_to_stype"),
        (_vectors(stype.timestamp), r"are timestamp \(as Tensor\)"),
        (_long(MOST_VALUES + 1), r"sequence_numerical: column 'long' .* 257 values.* 256 at most"),
    ],
)
def test_what_cannot_travel_is_refused_by_name(frame: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        as_columns(frame, "data['a'].tf")


def test_the_longest_cell_that_travels() -> None:
    frame = _long(MOST_VALUES)
    described, arrays = as_columns(frame, "data.tf")
    assert same(to_frame(described, arrays, 2), frame)
