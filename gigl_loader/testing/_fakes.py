"""Stand-ins for the other side of a connection, in this process."""

import ctypes
from collections.abc import Sequence
from typing import Any, TypeVar

from gigl_loader.dataset.view import PartitionView
from gigl_loader.memory import segments, tensors
from gigl_loader.memory.segments import Array
from gigl_loader.message import SampleMessage
from gigl_loader.sampler.plan import Sampler, SampleRequest
from gigl_loader.sampler.store import LocalStore

T = TypeVar("T")


def as_worker_gets(obj: T) -> Any:
    """Return ``obj`` as a worker receives it: its tensors are arrays over shared memory."""
    data, fds = tensors.dumps(obj)
    try:
        return segments.loads(data, fds)
    finally:
        segments.close_fds(fds)


class _Answered:
    def __init__(self, arrays: list[Array]) -> None:
        self._arrays = arrays

    def wait(self) -> list[Array]:
        return self._arrays


class InProcessPeers:
    """Answers for all partitions, in this process: give it to a sampler as its ``peers``.

    Args:
        views: Of all partitions, in order, as a dataset has them.

    ``asked`` lists the partition and the operation of every question.
    """

    def __init__(self, views: Sequence[PartitionView]) -> None:
        self._stores = [LocalStore(as_worker_gets(view)) for view in views]
        self.asked: list[tuple[int, int]] = []

    def call(
        self,
        partition: int,
        op: int,
        args: tuple[int, ...],
        arrays: list[Array],
        out: list[Array] | None = None,
    ) -> _Answered:
        """Answer a question for ``partition``."""
        self.asked.append((partition, op))
        answer = self._stores[partition].answer(op, args, arrays)
        return _Answered([array.copy() for array in answer])  # a store answers from scratch


def sample_message(sampler: Sampler, request: SampleRequest) -> SampleMessage:
    """Return what ``sampler`` answers to ``request``: the message that a loader would get.

    The request's columns may be tensors.
    """
    message = {}
    for field in sampler.sample(as_worker_gets(request)):
        buffer = (ctypes.c_char * segments.nbytes_of(field.dtype, field.shape))()
        field.write(segments.array_in(buffer, field.dtype, field.shape, 0))
        message[field.key] = tensors.tensor_in(buffer, field.dtype, field.shape, 0)
    return message
