"""Bytes and frames on one connection, against plain slicing of the same bytes."""

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gigl_loader.errors import ProtocolError
from gigl_loader.runtime.transport.codec import IncomingArray, decode, encode
from gigl_loader.runtime.transport.stream import (
    KNOCK_FRAME,
    VERSION,
    FrameKind,
    OtherVersionError,
    Stream,
    _advance,
    check_opening,
    cut_front,
    drive,
    pack,
    read_frame,
)
from gigl_loader.testing import wait_until
from tests.runtime.transport.service import SECURITIES
from tests.support.draws import examples

pytestmark = pytest.mark.waits

LONG_S = 60.0
"""Of a wait that ends by itself, unless something is broken."""


def connected() -> tuple[Stream, Stream]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        caller = socket.create_connection(server.getsockname())
        return Stream(caller), Stream(server.accept()[0])


@contextmanager
def pair(mode: str = "plain", buffer_bytes: int = 0) -> Iterator[tuple[Stream, Stream]]:
    one, other = connected()
    if buffer_bytes:  # so that each side often has to wait in the middle of a frame
        one.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        other.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    try:
        if mode == "tls":
            security = SECURITIES["tls"]()
            server = threading.Thread(
                target=finish,
                args=(other.start_tls(security.context(server=True), server=True), other),
            )
            server.start()
            finish(one.start_tls(security.context(server=False), server=False), one)
            server.join()
        yield one, other
    finally:
        one.close()
        other.close()


def finish(steps: Any, stream: Stream) -> Any:
    end = time.monotonic() + LONG_S

    def patience() -> float:
        assert time.monotonic() < end, "it waits for bytes that do not come"
        return 1.0

    return drive(steps, stream, patience)


def send(stream: Stream, views: list[memoryview]) -> None:
    while not stream.push(views):
        assert stream.wait(select.POLLOUT, LONG_S)


def views_of(data: bytes | bytearray, sizes: list[int]) -> list[memoryview]:
    """Cut ``data`` into pieces of these sizes, and what is left."""
    left, found = memoryview(data), []
    for size in sizes:
        found.append(left[:size])
        left = left[size:]
    return [*found, left]


@pytest.mark.parametrize("mode", SECURITIES)
@settings(max_examples=examples(30))
@given(
    sent=st.lists(st.integers(0, 40_000), max_size=8),
    received=st.lists(st.integers(0, 40_000), max_size=8),
    total=st.integers(1, 100_000),
)
@example(sent=[0, 0], received=[0], total=1)
@example(sent=[16_384], received=[1] * 8, total=600_000)
def test_bytes_arrive_in_order_however_they_are_cut(
    mode: str, sent: list[int], received: list[int], total: int
) -> None:
    data = np.random.default_rng(total).bytes(total)
    found = bytearray(total)
    with pair(mode, buffer_bytes=8192) as (one, other):
        sender = threading.Thread(target=send, args=(one, views_of(data, sent)))
        sender.start()
        finish(other.fill(views_of(found, received)), other)
        sender.join()
        assert bytes(found) == data
        assert not other.wait(select.POLLIN, 0.0)


@given(st.lists(st.binary(max_size=6), max_size=6), st.data())
def test_advance_drops_the_first_bytes(pieces: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(pieces)
    done = data.draw(st.integers(0, len(whole)))
    views = [memoryview(piece) for piece in pieces]
    _advance(views, done)
    assert b"".join(views) == whole[done:]


@given(st.lists(st.binary(max_size=6), max_size=6), st.integers(0, 40))
def test_cut_front_takes_the_first_bytes(pieces: list[bytes], nbytes: int) -> None:
    whole = b"".join(pieces)
    views = [memoryview(piece) for piece in pieces]
    assert b"".join(cut_front(views, nbytes)) == whole[:nbytes]
    assert b"".join(views) == whole[nbytes:]


@pytest.mark.parametrize("mode", SECURITIES)
def test_what_the_peer_has_received_is_counted_once(mode: str) -> None:
    with pair(mode) as (one, other):
        counted = 0

        def have_arrived() -> bool:
            nonlocal counted
            counted += one.newly_acknowledged()
            return counted == one.sent_bytes

        wait_until(have_arrived, "the handshake is over")
        one.keep_unsent(64 << 10)
        total, before = 3 << 20, one.sent_bytes
        views = [memoryview(bytes(total))]
        found = memoryview(bytearray(total))
        steps = other.fill([found])
        while not one.push(views):
            counted += one.newly_acknowledged()
            assert next(steps, None) is None
        finish(steps, other)
        wait_until(have_arrived, "the peer's machine has all")
        assert one.sent_bytes - before >= total
        assert one.newly_acknowledged() == 0


@pytest.mark.parametrize("unsent", [64 << 10, 256 << 10])
def test_the_kernel_keeps_no_more_unsent_than_it_is_told(unsent: int) -> None:
    with pair() as (one, _):
        one.keep_unsent(unsent)
        views = [memoryview(bytes(32 << 20))]
        assert not one.push(views), "nobody reads"
        before = one.sent_bytes
        one.keep_unsent(0)
        assert not one.push(views)
        assert one.sent_bytes - before > unsent, "as much as it likes"


@pytest.mark.parametrize("mode", SECURITIES)
def test_a_frame_may_be_left_in_its_middle_and_read_on_later(mode: str) -> None:
    rows = np.arange(50_000).reshape(100, 500)
    buffers = pack(FrameKind.ASK, {"rows": rows}, "rows of")
    whole = b"".join(buffers)
    with pair(mode) as (one, other):
        steps = read_frame(other, rows.nbytes)
        for piece in views_of(whole, [3, 4, 20, 30_000])[:-1]:
            send(one, [piece])
            assert other.wait(select.POLLIN, LONG_S)
            next(steps)  # all that is there, and no frame
        send(one, [memoryview(whole)[30_027:], *pack(FrameKind.ALIVE, None)])
        frame = finish(steps, other)
        assert (frame.kind, frame.method) == (FrameKind.ASK, "rows of")
        np.testing.assert_array_equal(
            decode(frame.body, frame.arrays, dict[str, np.ndarray])["rows"], rows
        )
        assert finish(read_frame(other, 0), other).kind is FrameKind.ALIVE


def no_room(specs: list[IncomingArray]) -> Any:
    raise AssertionError(f"memory was asked for: {specs}")


def changed(at: int, data: bytes) -> Callable[[bytes], bytes]:
    return lambda frame: frame[:at] + data + frame[at + len(data) :]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (changed(0, b"HTTP"), "not gigl_loader's protocol"),
        (changed(4, bytes([VERSION + 1])), f"version {VERSION + 1} of the protocol"),
        (changed(5, b"\x63"), "kind 99"),
        (changed(8, (2 << 20).to_bytes(4, "little")), "header of 2097152 bytes"),
        (changed(12, (5000).to_bytes(4, "little")), "5000 arrays"),
        (changed(12, (2).to_bytes(4, "little")), "do not add up to 2 of 800"),
        (changed(16, (16 << 30).to_bytes(8, "little")), "arrays of 17179869184 bytes"),
        (changed(16, (799).to_bytes(8, "little")), "do not add up to 1 of 799"),
    ],
)
def test_a_frame_that_is_none_takes_no_memory(change: Callable[[bytes], bytes], words: str) -> None:
    frame = change(b"".join(pack(FrameKind.ASK, [np.zeros(100)], "rows")))
    with pair() as (one, other):
        send(one, [memoryview(frame)])
        with pytest.raises(ProtocolError, match=words):
            finish(read_frame(other, 1000, no_room), other)


def test_limits_hold_to_the_byte() -> None:
    buffers = pack(FrameKind.ASK, [np.zeros(100)], "rows")
    header_bytes = len(encode([np.zeros(100)], "rows")[0])
    for bytes_less, header_less in ((0, 0), (1, 0), (0, 1)):
        with pair() as (one, other):
            send(one, list(buffers))
            steps = read_frame(other, 800 - bytes_less, max_header_bytes=header_bytes - header_less)
            if bytes_less or header_less:
                with pytest.raises(ProtocolError, match="at most"):
                    finish(steps, other)
            else:
                assert finish(steps, other).arrays[0].nbytes == 800


def test_an_opening_is_known_by_its_first_bytes() -> None:
    for length in range(len(KNOCK_FRAME)):
        check_opening(KNOCK_FRAME[:length])  # so far it may be one of ours
    with pytest.raises(OtherVersionError, match=r"version 9 .*this side 3.* same gigl_loader"):
        check_opening(KNOCK_FRAME[:4] + b"\x09")
    with pytest.raises(ProtocolError, match="opened with b'HTTP/1'"):
        check_opening(b"HTTP/1")


@pytest.mark.parametrize("mode", SECURITIES)
def test_a_connection_that_ends_in_a_frame_is_an_end_of_file(mode: str) -> None:
    with pair(mode) as (one, other):
        send(one, [pack(FrameKind.ASK, [np.zeros(9)], "rows")[0]])
        steps = read_frame(other, 1000)
        next(steps)
        one.shutdown()
        with pytest.raises(EOFError):
            finish(steps, other)


def test_whoever_is_sending_is_not_interrupted() -> None:
    with pair() as (one, other):
        with one.send_lock:  # a frame is half sent
            one.say(b"alive")
        one.say(b"goodbye")
        found = bytearray(7)
        finish(other.fill([memoryview(found)]), other)
        assert found == b"goodbye"
        assert other.first_bytes == b"goodbye"


def test_a_shutdown_wakes_and_a_closed_connection_is_named() -> None:
    with pair() as (one, other):
        seen: list[int] = []
        waits = threading.Thread(target=lambda: seen.append(one.wait(select.POLLIN, LONG_S)))
        waits.start()
        one.shutdown()
        one.shutdown()
        waits.join()
        assert seen[0] & select.POLLIN
        assert not other.vanished(0.0)  # nothing was sent that nobody acknowledged
        one.close()
        with pytest.raises(OSError, match="closed"):
            one.wait(select.POLLIN, 0.0)


def test_nothing_listens_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    stream = Stream(socket.socket())
    try:
        with pytest.raises(ConnectionRefusedError):
            stream.connect(address, lambda: 1.0)
    finally:
        stream.close()
