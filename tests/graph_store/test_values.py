"""Tensors and GLT's classes as messages: the same comes back, and what cannot travel is refused."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader import CustomSamplerOptions, FeatureInfo
from gigl_loader.errors import ConfigError, ProtocolError
from gigl_loader.graph_store.wire import calls
from gigl_loader.graph_store.wire.calls import (
    BookMessage,
    FeatureInfosMessage,
    SamplerMessage,
    TensorMessage,
    from_message,
    to_message,
)
from gigl_loader.runtime.transport.codec import decode, encode, read_header
from gigl_loader.sampler.options import KHopNeighborSamplerOptions
from tests.support.glt import NodeSamplerInput, RangePartitionBook, RemoteDistSamplingWorkerOptions

USER = ("user", "buys", "item")


def _sent(value):
    """Return ``value`` as it arrives."""
    header, arrays = encode(value)
    _, body, _ = read_header(header)
    return decode(body, [array.copy() for array in arrays], type(value))


# --- tensors --------------------------------------------------------------------------------------


@given(
    st.sampled_from(sorted(set(calls._DTYPES) - {"complex32"})),  # torch warns of that one
    st.lists(st.integers(0, 4), max_size=4),
    st.booleans(),
)
def test_tensors_keep_their_bits(name: str, shape: list[int], strided: bool) -> None:
    count = int(np.prod(shape, dtype=int))
    dtype = calls.dtype_of(name)
    bits = torch.arange(count * dtype.itemsize) % 2  # any value that a bool can have
    tensor = bits.to(torch.uint8).view(dtype).view(shape) if count else torch.empty(shape).to(dtype)
    if strided and tensor.dim() > 1:
        tensor = tensor.transpose(0, 1)
    found = _sent(TensorMessage.of(tensor)).result
    assert found.dtype == dtype
    assert found.shape == tensor.shape
    if count:
        whole = tensor.contiguous().reshape(-1)
        assert torch.equal(found.reshape(-1).view(torch.uint8), whole.view(torch.uint8))


def test_a_tensor_is_not_copied_at_either_end() -> None:
    tensor = torch.arange(4)
    message = TensorMessage.of(tensor)
    assert message.array.ctypes.data == tensor.data_ptr() == message.result.data_ptr()


def test_tensors_that_do_not_travel_are_refused_at_both_ends(monkeypatch) -> None:
    monkeypatch.delitem(calls._DTYPES, "int16")  # as a type that only another release has
    with pytest.raises(ConfigError, match=r"a tensor of torch\.int16 cannot be sent"):
        TensorMessage.of(torch.zeros(2, dtype=torch.int16))
    with pytest.raises(ProtocolError, match="of type 'load' came"):
        calls.dtype_of("load")  # a name of torch's, and no type
    for array in (np.zeros(2, np.int64), np.zeros(0, np.int64)):
        with pytest.raises(ProtocolError, match="came as an array of int64"):
            _ = TensorMessage("float32", array).result


# --- classes --------------------------------------------------------------------------------------


def test_values_within_values_travel_and_plain_ones_stay_as_they_are() -> None:
    plain = {"a": [1, "b"], "c": (None, 2.5)}
    assert to_message(plain) == plain
    nested = {"x": (torch.arange(3), {"y": torch.ones(1)})}
    message = to_message(nested)
    assert isinstance(message["x"][0], TensorMessage)
    found = from_message(message)
    assert torch.equal(found["x"][0], nested["x"][0])
    assert torch.equal(found["x"][1]["y"], torch.ones(1))


def test_an_input_without_further_columns() -> None:
    """GLT's own class has none."""
    given_input = NodeSamplerInput(torch.tensor([3, 1]), None)
    if hasattr(given_input, "extra"):
        del given_input.extra
    found = from_message(_sent(to_message(given_input)))
    assert found.node.tolist() == [3, 1]
    assert found.extra == {}


WIDE, NARROW = FeatureInfo(3, torch.bfloat16), FeatureInfo(0, torch.int8)


@pytest.mark.parametrize("infos", [None, {}, WIDE, {"user": WIDE, USER: NARROW}])
def test_feature_infos_of_all_types_of_some_or_of_none(infos: Any) -> None:
    assert _sent(FeatureInfosMessage.of(infos)).result == infos


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 4))
def test_range_books_keep_their_ranges(sizes: list[int], idx: int) -> None:
    ends = np.cumsum(sizes).tolist()
    book = RangePartitionBook(list(zip([0, *ends], ends, strict=False)), min(idx, len(sizes) - 1))
    found = _sent(BookMessage.of(book)).result
    assert found.partition_idx == book.partition_idx
    assert torch.equal(found.partition_bounds, book.partition_bounds)
    every = torch.arange(ends[-1])
    expected = [part for part, size in enumerate(sizes) for _ in range(size)]
    assert found[every].tolist() == expected


def test_books_of_another_class_are_told_by_their_bounds() -> None:
    """GLT's and ours are two; and a table may be of a subclass of torch's tensor."""
    other = SimpleNamespace(partition_bounds=torch.tensor([2, 5]), partition_idx=torch.tensor(1))
    message = BookMessage.of(other)
    assert message.partition_idx == 1
    assert message.result[torch.tensor([1, 2])].tolist() == [0, 1]

    class Table(torch.Tensor):
        pass

    table = torch.tensor([1, 0], dtype=torch.uint8).as_subclass(Table)
    found = BookMessage.of(table).result
    assert type(found) is torch.Tensor
    assert found.tolist() == [1, 0]
    assert _sent(BookMessage.of(None)).result is None


def _options(**how: Any) -> RemoteDistSamplingWorkerOptions:
    return RemoteDistSamplingWorkerOptions(
        **{
            "server_rank": [0],
            "num_workers": 2,
            "worker_concurrency": 3,
            "worker_key": None,
            "master_addr": "10.0.0.1",
            "master_port": 7,
            **how,
        }
    )


@pytest.mark.parametrize("prefetch", [1, 6, 50])
def test_batches_are_asked_ahead_as_far_as_was_said(prefetch: int) -> None:
    """Also beyond what GLT's constructor lets pass: two workers of three threads."""
    options = _options()
    options.prefetch_size = prefetch
    assert from_message(_sent(to_message(options))).prefetch_size == prefetch


def test_one_server_is_a_list_of_one() -> None:
    assert from_message(_sent(to_message(_options(server_rank=3)))).server_rank == [3]


def test_samplers_are_a_path_or_a_fanout() -> None:
    for options in (
        KHopNeighborSamplerOptions([2, 3]),
        KHopNeighborSamplerOptions({USER: [3, -1]}),
        CustomSamplerOptions("a.B", {"limit": 3, "names": ["a"], "none": None}),
    ):
        assert from_message(_sent(to_message(options))) == options
    with pytest.raises(ProtocolError, match="name neither a class nor a fanout"):
        _ = SamplerMessage().result
    itself: list[Any] = []
    itself.append(itself)
    for keywords in ({"function": print}, {"large": 1 << 70}, {"nested": itself}):
        with pytest.raises(ConfigError, match=r"keywords of a\.B cannot be sent"):
            to_message(CustomSamplerOptions("a.B", keywords))


def test_a_sampling_type_that_there_is_not_is_refused() -> None:
    message = calls.SamplingConfigMessage(
        sampling_type="NODES",
        num_neighbors=[1],
        batch_size=1,
        shuffle=False,
        drop_last=False,
        with_edge=False,
        collect_features=True,
        with_neg=False,
        with_weight=False,
        edge_dir="in",
        seed=None,
    )
    with pytest.raises(ProtocolError, match="there is no sampling type 'NODES'"):
        _ = message.result
