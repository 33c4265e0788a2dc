"""`ShmChannel`: leases of slots, and messages that this process itself sends."""

import gc
import os
import threading

import pytest
import torch

from gigl_loader.batch.leases import ShmChannel, field_of
from gigl_loader.batch.slots import SlotWriter
from gigl_loader.errors import ConfigError, PeerTimeoutError, UsageError
from gigl_loader.runtime.memory import segments
from gigl_loader.testing import open_files, wait_until


class _Pin:
    """Counts registrations that were not undone."""

    active = 0

    def __init__(self, address: int, nbytes: int) -> None:
        _Pin.active += 1

    def release(self) -> None:
        _Pin.active -= 1


def _send(channel: ShmChannel, writer: SlotWriter, message: dict, sender: int = 0) -> dict:
    free, retired = channel.returned(sender, 1)
    writer.give_back(free, retired)
    written = writer.write([field_of(name, tensor) for name, tensor in message.items()])
    try:
        return channel.open(sender, written)
    finally:
        if written.fd is not None:
            os.close(written.fd)


def _mappings() -> int:
    with open("/proc/self/maps") as maps:
        return sum("gigl_loader.slot" in line for line in maps)


def _num_of_ours() -> int:
    """Return how many descriptors this process has of memory of this package."""
    return sum("gigl_loader" in name for name in open_files())


def test_any_dtype_and_shape_arrives() -> None:
    channel, writer = ShmChannel(2, 1), SlotWriter()
    message = {
        "a": torch.arange(7),
        "empty": torch.empty(0, 3),
        "flag": torch.tensor(True),
        "half": torch.rand(3, 5).half(),
        "big": torch.rand(4, 3, 2, dtype=torch.float64),
        "bfloat": torch.rand(3, 2).bfloat16(),
        "byte": torch.tensor(3, dtype=torch.uint8),
    }
    found = _send(channel, writer, message)
    assert found.keys() == message.keys()
    for name, value in message.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)
        assert found[name].data_ptr() % segments.ALIGNMENT == 0 or not value.numel()
    channel.close()


def test_a_slot_is_used_again_once_the_last_tensor_is_dropped() -> None:
    channel, writer = ShmChannel(2, 1), SlotWriter()
    first = _send(channel, writer, {"a": torch.zeros(8), "b": torch.ones(8)})
    view = first["b"][3:5]  # a view of one tensor keeps the whole slot
    address = first["a"].data_ptr()
    del first
    gc.collect()
    second = _send(channel, writer, {"a": torch.full((8,), 2.0)})
    assert second["a"].data_ptr() != address
    assert view.tolist() == [1.0, 1.0]
    del view
    gc.collect()
    third = _send(channel, writer, {"a": torch.full((8,), 3.0)})
    assert third["a"].data_ptr() == address
    assert second["a"].tolist() == [2.0] * 8
    channel.close()
    assert third["a"].tolist() == [3.0] * 8, "what is held is right after the end, too"


def test_messages_that_grow_and_memory_that_is_given_up() -> None:
    gc.collect()  # what tests before this one left goes now, and not while it is counted
    before = _mappings()
    channel, writer = ShmChannel(2, 1, register=_Pin), SlotWriter()
    for size in (10, 10**5, 10, 10**6, 3 * 10**6):
        found = _send(channel, writer, {"a": torch.arange(size)})
        assert torch.equal(found["a"], torch.arange(size))
    assert _Pin.active <= 4
    kept = [_send(channel, writer, {"a": torch.full((9,), i)}) for i in range(30)]
    assert [int(one["a"][0]) for one in kept] == list(range(30))
    most = _Pin.active
    del kept
    gc.collect()
    for _ in range(3):
        _send(channel, writer, {"a": torch.zeros(1)})
        gc.collect()
    assert _Pin.active < most / 3, "slots that a long memory had filled are given up"
    del found
    channel.close()
    large = writer.write([field_of("a", torch.zeros(10**7))])  # gives all free ones up
    assert large.fd is not None
    os.close(large.fd)
    assert _Pin.active == 0
    assert _mappings() - before <= 2 * len(writer._leased)


def test_kept_batches_cost_no_descriptors() -> None:
    channel, writer = ShmChannel(2, 1), SlotWriter()
    gc.collect()
    before = _num_of_ours()
    kept = [_send(channel, writer, {"a": torch.full((4,), i)}) for i in range(300)]
    assert _num_of_ours() <= before + 2
    assert [int(one["a"][3]) for one in kept] == list(range(300))
    channel.close()


def test_senders_do_not_mix() -> None:
    channel = ShmChannel(4, 1)
    writers = [SlotWriter(), SlotWriter()]
    found = [_send(channel, writers[i % 2], {"a": torch.full((3,), i)}, i % 2) for i in range(6)]
    assert [int(one["a"][0]) for one in found] == list(range(6))
    del found[0]
    gc.collect()
    assert channel.returned(1, 9) == ([], [])
    assert channel.returned(0, 9) == ([0], [])
    assert channel.returned(7, 9) == ([], [])
    channel.close()


# --- messages of this process ---------------------------------------------------------------------


def test_send_and_receive_in_one_process() -> None:
    channel = ShmChannel(4, 2**20)
    assert channel.empty()
    for i in range(10):
        channel.send({"a": torch.full((3,), i)})
        assert not channel.empty()
        assert channel.recv()["a"].tolist() == [i] * 3
    with pytest.raises(PeerTimeoutError, match=r"0\.01 s"):
        channel.recv(timeout_s=0.01)
    channel.close()


def test_close_wakes_a_waiting_receiver() -> None:
    channel, errors = ShmChannel(4, 2**20), []

    def receive() -> None:
        try:
            channel.recv()
        except UsageError as error:
            errors.append(str(error))

    thread = threading.Thread(target=receive)
    thread.start()
    wait_until(lambda: vars(channel._arrival)["_waiters"], "the receiver waits")
    channel.close()
    thread.join(60.0)
    assert "closed while" in errors[0]
    channel.close()
    for use in (channel.recv, lambda: channel.send({})):
        with pytest.raises(UsageError, match="closed"):
            use()


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0), (-1, 5)])
def test_sizes_that_cannot_work(sizes: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="> 0"):
        ShmChannel(*sizes)
