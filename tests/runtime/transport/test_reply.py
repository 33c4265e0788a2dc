"""One answer, without a connection: frames are made here."""

from typing import Any

import msgspec
import numpy as np
import pytest

from gigl_loader.errors import ConfigError, PeerTimeoutError, ProtocolError, UsageError
from gigl_loader.runtime.transport.codec import IncomingArray, encode, read_header
from gigl_loader.runtime.transport.failures import describe
from gigl_loader.runtime.transport.reply import Reply, into_array
from gigl_loader.runtime.transport.stream import Frame, FrameKind

ROWS = np.arange(6.0).reshape(2, 3)


def at_once(reply: Reply[Any], timeout_s: float | None) -> None:
    assert reply.done


def reply_for(expected: Any = np.ndarray, **options: Any) -> Reply[Any]:
    views = [memoryview(b"question")]
    return Reply(options.get("wait_for", at_once), "rows", views, expected, options.get("into"))


def frame(value: object, kind: FrameKind = FrameKind.ANSWER) -> Frame:
    header, arrays = encode(value)
    method, body, _ = read_header(header)
    return Frame(kind, method, body, arrays)


SPECS = [IncomingArray(ROWS.dtype, ROWS.shape)]


def test_an_answer_ends_the_question() -> None:
    reply = reply_for(dict[str, int])
    assert not reply.done
    assert reply.views
    reply.take(frame({"rows": 3}), "server")
    assert reply.wait() == {"rows": 3}
    assert reply.views == []  # the arrays of the question may be changed from here on


def test_an_error_comes_back_as_itself() -> None:
    reply = reply_for()
    reply.take(frame(describe(ConfigError("no such graph")), FrameKind.ERROR), "server")
    with pytest.raises(ConfigError, match="no such graph"):
        reply.wait()


@pytest.mark.parametrize("body", [{"rows": "three"}, [1]])
def test_an_answer_of_another_type_fails(body: object) -> None:
    reply = reply_for(dict[str, int])
    reply.take(frame(body), "server")
    with pytest.raises(ProtocolError, match="not a dict"):
        reply.wait()


def test_an_error_frame_that_is_no_failure() -> None:
    reply = reply_for()
    reply.take(Frame(FrameKind.ERROR, "", msgspec.Raw(b"\x01"), []), "server")
    with pytest.raises(ProtocolError):
        reply.wait()


def test_whoever_waits_hears_of_the_deadline() -> None:
    def late(reply: Reply[Any], timeout_s: float | None) -> None:
        raise PeerTimeoutError(f"after {timeout_s}")

    with pytest.raises(PeerTimeoutError, match=r"after 2\.5"):
        reply_for(wait_for=late).wait(2.5)


def test_memory_is_the_askers() -> None:
    out = np.zeros_like(ROWS)
    reply = reply_for(into=into_array(out))
    (mine,) = reply.room(SPECS)
    assert mine is out
    assert reply_for().room(SPECS)[0].shape == ROWS.shape


@pytest.mark.parametrize(
    "given",
    [
        [],
        [np.zeros((2, 3), np.float32)],
        [np.zeros((3, 2))],
        [np.zeros((3, 2)).T],  # strided: bytes would land elsewhere
        [np.zeros((2, 3)), np.zeros((2, 3))],
    ],
)
def test_memory_that_does_not_fit_fails_this_answer_only(given: list[np.ndarray]) -> None:
    reply = reply_for(into=lambda specs: given)
    (aside,) = reply.room(SPECS)  # its bytes have to go somewhere
    assert aside.shape == ROWS.shape
    reply.take(frame(ROWS), "server")
    with pytest.raises(UsageError, match="into"):
        reply.wait()


def test_a_second_attempt_is_not_charged_with_the_first() -> None:
    full = [True]

    def into(specs: list[IncomingArray]) -> list[np.ndarray]:
        if full.pop() if full else False:
            raise MemoryError("no slot is free")
        return [np.empty(spec.shape, spec.dtype) for spec in specs]

    reply = reply_for(into=into)
    reply.room(SPECS)  # the connection is lost then, and the question asked again
    reply.room(SPECS)
    reply.take(frame(ROWS), "server")
    np.testing.assert_array_equal(reply.wait(), ROWS)


@pytest.mark.parametrize(
    "specs",
    [[], SPECS * 2, [IncomingArray(np.dtype("f4"), (2, 3))], [IncomingArray(ROWS.dtype, (6,))]],
)
def test_into_array_takes_one_array_of_its_kind(specs: list[IncomingArray]) -> None:
    with pytest.raises(ProtocolError, match="was due"):
        into_array(ROWS)(specs)
