"""Stand-ins for the other side of a connection, in this process."""

from collections.abc import Sequence

import torch
from torch import Tensor

from gigl_loader.dataset.view import PartitionView
from gigl_loader.message import SampleMessage
from gigl_loader.sampler.plan import Sampler, SampleRequest
from gigl_loader.sampler.store import LocalStore


class _Answered:
    def __init__(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    def wait(self) -> list[Tensor]:
        return self._tensors


class InProcessPeers:
    """Answers for all partitions, in this process: give it to a sampler as its ``peers``.

    Args:
        views: Of all partitions, in order.

    ``asked`` lists the partition and the operation of every question.
    """

    def __init__(self, views: Sequence[PartitionView]) -> None:
        self._stores = [LocalStore(view) for view in views]
        self.asked: list[tuple[int, int]] = []

    def call(
        self,
        partition: int,
        op: int,
        args: tuple[int, ...],
        tensors: list[Tensor],
        out: list[Tensor] | None = None,
    ) -> _Answered:
        """Answer a question for ``partition``."""
        self.asked.append((partition, op))
        answer = self._stores[partition].answer(op, args, tensors)
        return _Answered([tensor.clone() for tensor in answer])  # a store answers from scratch


def sample_message(sampler: Sampler, request: SampleRequest) -> SampleMessage:
    """Return what ``sampler`` answers to ``request``: the message that a loader would get."""
    message = {}
    for field in sampler.sample(request):
        tensor = torch.empty(field.shape, dtype=field.dtype)
        field.write(tensor)
        message[field.key] = tensor
    return message
