"""Responses that may still be pending."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from gigl_loader.errors import ProtocolError, UsageError
from gigl_loader.runtime.transport.codec import Array, IncomingArray, decode, empty_arrays
from gigl_loader.runtime.transport.failures import Failure, rebuild
from gigl_loader.runtime.transport.stream import Frame, FrameKind

T = TypeVar("T")
Into = Callable[[list[IncomingArray]], "list[Array]"]


class Reply(Generic[T]):
    """The response to one request, which may still be pending."""

    def __init__(
        self,
        wait_for: "Callable[[Reply[Any], float | None], None]",
        method: str,
        views: list[memoryview],
        expected: type[T],
        into: Into | None,
    ) -> None:
        self.method, self.views, self._into = method, views, into
        self._wait_for, self._expected = wait_for, expected
        self.done = False
        """Whether the response, or an error, has come."""
        self._value: Any = None
        self._error: Exception | None = None

    def wait(self, timeout_s: float | None = None) -> T:
        """Return the response.

        Args:
            timeout_s: How long to wait, in seconds; None: as long as the peer is alive. After a
                `PeerTimeoutError` the call may be repeated.

        Raises:
            PeerTimeoutError: The response did not come in time; the peer is alive.
            PeerLostError: The peer is gone, silent or has said goodbye; ``end`` tells which.
            ProtocolError: One side sent a frame that the other does not understand.
            RemoteError: The method raised, or any error of gigl_loader that it raised.
        """
        self._wait_for(self, timeout_s)
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value

    def room(self, specs: list[IncomingArray]) -> list[Array]:
        """Return the memory for the response's arrays: the caller's, where it gave some."""
        self._error = None  # of an attempt whose connection was lost before its bytes were here
        if self._into is None or not specs:
            return empty_arrays(specs)
        try:
            return _checked(self._into(specs), specs)
        except Exception as error:  # the caller's own code failed: only this response is lost
            self._error = error
            # its bytes are read anyway, as the next response begins behind them
            return empty_arrays(specs)

    def take(self, frame: Frame, where: str) -> None:
        """Keep the response in ``frame``, unless there was no memory for it."""
        try:
            if frame.kind is FrameKind.ERROR:
                self.end(rebuild(decode(frame.body, frame.arrays, Failure), where))
            elif self._error is None:
                self._value = decode(frame.body, frame.arrays, self._expected)
            self.end(self._error)
        except ProtocolError as error:
            self.end(error)

    def end(self, error: Exception | None) -> None:
        """End all waits; the request's arrays are free again."""
        # `done` last: a thread that sees it without a lock reads the error next
        self._error, self.views, self._into, self.done = error, [], None, True


def into_array(out: Array) -> Into:
    """Return a function that receives a response of one array into ``out``, and refuses others."""

    def room(specs: list[IncomingArray]) -> list[Array]:
        if [(spec.dtype, spec.shape) for spec in specs] != [(out.dtype, out.shape)]:
            raise ProtocolError(f"{specs} came where {out.dtype} {out.shape} was due")
        return [out]

    return room


def _checked(arrays: list[Array], specs: list[IncomingArray]) -> list[Array]:
    layouts = [(array.dtype, array.shape, array.flags.c_contiguous) for array in arrays]
    if layouts != [(spec.dtype, spec.shape, True) for spec in specs]:
        raise UsageError(f"into() returned {layouts} for arrays of {specs}")
    return arrays
