"""Batches as they cross machines: the same tensors come out, and nothing that cannot be one."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.batch.leases import BufferPool
from gigl_loader.batch.message import BatchTicket, Field
from gigl_loader.batch.slots import layout_of, write_fields
from gigl_loader.errors import ProtocolError
from gigl_loader.graph_store.wire.payload import pack_batch, unpack_batch, wire_bytes
from gigl_loader.graph_store.wire.requests import BatchMessage
from gigl_loader.runtime.transport import codec

RANDOM = np.random.default_rng(0)


def _edges(count: int) -> np.ndarray:
    targets = np.sort(RANDOM.integers(0, 1 + count // 8, count))
    return np.stack([RANDOM.integers(0, 100_000, count), targets])


def _fields(num_nodes: int, num_edges: int) -> list[Field]:
    return [
        Field.of("#IS_HETERO", np.uint8(0)),
        Field.of("n_id", RANDOM.integers(0, 1 << 40, num_nodes)),
        Field.of("num_sampled_nodes", np.array([1, num_nodes])),
        Field.of("x", RANDOM.random((num_nodes, 3), np.float32)),
        Field.of("y", RANDOM.integers(-5, 5, num_nodes)),
        Field.of("edge_index", _edges(num_edges)),
        Field.of("e_id", RANDOM.integers(0, 1 << 33, num_edges)),
        Field.of("edge_attr", RANDOM.random((num_edges, 2)).astype(np.float16)),
        Field.of("nothing", np.empty((0, 3))),
    ]


def _sent(fields: list[Field]) -> BatchMessage:
    layout, nbytes = layout_of(fields)
    slot = bytearray(nbytes)
    write_fields(fields, layout, slot)
    ticket = BatchTicket(0, 0, 0, 0)
    columns, parts = pack_batch(layout, memoryview(slot))
    return BatchMessage(ticket, {}, layout, columns, parts)


def _received(message: BatchMessage) -> BatchMessage:
    """Through the transport's bytes, into a buffer of a pool, as the channel does."""
    header, arrays = codec.encode(message)
    _, body, specs = codec.read_header(header)
    room = BufferPool(pin_memory=False).room(specs)
    for here, there in zip(room, arrays, strict=True):
        here[...] = there
    return codec.decode(body, room, BatchMessage)


@given(num_nodes=st.integers(0, 700), num_edges=st.integers(0, 700))
def test_a_batch_comes_out_as_it_went_in(num_nodes: int, num_edges: int) -> None:
    fields = _fields(num_nodes, num_edges)
    batch, pool = _received(_sent(fields)), BufferPool(pin_memory=False)
    found = unpack_batch(batch.layout, batch.columns, batch.parts, pool.take_leased)
    del batch, pool  # the tensors keep what they need
    assert list(found) == [field.key for field in fields]
    for field in fields:
        out = np.empty(field.shape, field.dtype)
        field.write(out)
        assert torch.equal(found[field.key], torch.from_numpy(out)), field.key
        assert found[field.key].dtype == getattr(torch, field.dtype)


def test_an_edge_takes_less_than_six_bytes() -> None:
    """Of a batch of 1,024 seeds as measured: 92,000 nodes, 160,000 edges."""
    batch = _sent([Field.of("edge_index", _edges(160_000))])
    sizes = wire_bytes(batch.columns, batch.parts, batch.layout)
    assert sizes["structure"] < 3 * 160_000, "17 bits for the neighbour, half a byte for the target"
    assert sizes["rows"] == 0
    batch = _sent(_fields(300, 300))
    assert wire_bytes(batch.columns, batch.parts, batch.layout)["rows"] == 300 * (12 + 4)


def _change(batch: BatchMessage, **changes: Any) -> BatchMessage:
    return dataclasses.replace(batch, **changes)


def test_what_is_no_batch_is_refused_before_memory_is_taken() -> None:
    batch = _sent(_fields(600, 600))

    def take(nbytes: int) -> None:
        raise AssertionError("memory was taken")

    larger = [
        (key, dtype, tuple(8 * size for size in shape), offset)
        for key, dtype, shape, offset in batch.layout
    ]
    runs = {**batch.columns, "n_id": batch.columns["edge_index"][1:]}
    for wrong in (
        _change(batch, parts=batch.parts[:-1]),
        _change(batch, parts=[part[:-1] for part in batch.parts]),
        _change(batch, columns={}),
        _change(batch, columns=runs),
        _change(batch, columns={**batch.columns, "n_id": []}),
        _change(batch, layout=larger),
        _change(batch, layout=[(*entry[:3], 0) for entry in batch.layout]),
    ):
        with pytest.raises(ProtocolError):
            unpack_batch(wrong.layout, wrong.columns, wrong.parts, take)
