"""Stand-ins for the other side of a connection, in this process."""

import ctypes
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from gigl_loader.dataset.view import PartitionView
from gigl_loader.memory import segments, tensors
from gigl_loader.memory.segments import Array
from gigl_loader.message import SampleMessage
from gigl_loader.sampler.plan import Sampler, SampleRequest
from gigl_loader.sampler.questions import Drawn, DrawRequest, RowsAnswer, RowsRequest
from gigl_loader.sampler.reader import LocalReader

T = TypeVar("T")


def as_worker_gets(obj: T) -> Any:
    """Return ``obj`` as a worker receives it: its tensors are arrays over shared memory."""
    # the way of a real worker, descriptors and all: samplers get arrays, never tensors
    data, fds = tensors.dumps(obj)
    try:
        return segments.loads(data, fds)
    finally:
        segments.close_fds(fds)


class _Answered(Generic[T]):
    has_come = True

    def __init__(self, answer: T) -> None:
        self._answer = answer

    def wait(self) -> T:
        return self._answer


class InProcessPeers:
    """Answers for all partitions, in this process: give it to a sampler as its ``peers``.

    Args:
        views: Of all partitions, in order, as a dataset has them.

    ``asked`` lists the partition and the request of every question.
    """

    def __init__(self, views: Sequence[PartitionView]) -> None:
        self._stores = [LocalReader(as_worker_gets(view)) for view in views]
        self.asked: list[tuple[int, DrawRequest | RowsRequest]] = []

    def draw(self, partition: int, request: DrawRequest) -> _Answered[Drawn]:
        """Answer a question for neighbours."""
        self.asked.append((partition, request))
        return _Answered(self._stores[partition].answer_draw(request))

    def rows(self, partition: int, request: RowsRequest, out: Array) -> _Answered[RowsAnswer]:
        """Answer a question for rows, in ``out``."""
        self.asked.append((partition, request))
        # casting="no": a wrong dtype is an error here, as it would be wrong bytes between machines
        np.copyto(out, self._stores[partition].answer_rows(request).values, casting="no")
        return _Answered(RowsAnswer(out))


def sample_message(sampler: Sampler, request: SampleRequest) -> SampleMessage:
    """Return what ``sampler`` answers to ``request``: the message that a loader would get.

    The request's columns may be tensors.
    """
    message = {}
    for field in sampler.sample(as_worker_gets(request)):
        # zeroed memory of exactly the field's size: a write beyond it is an error of numpy's
        buffer = (ctypes.c_char * segments.nbytes_of(field.dtype, field.shape))()
        field.write(segments.array_in(buffer, field.dtype, field.shape, 0))
        message[field.key] = tensors.tensor_in(buffer, field.dtype, field.shape, 0)
    return message
