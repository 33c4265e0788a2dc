"""Negatives as people use them: random ones from a second loader, or those of the batch itself."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from gigl_loader.errors import ConfigError, UsageError

A = TypeVar("A")
B = TypeVar("B")


def zip_with_negatives(links: Iterable[A], negatives: Iterable[B]) -> Iterator[tuple[A, B]]:
    """Yield each batch of ``links`` with one of ``negatives``, whose epochs start again as needed.

    Args:
        links: A `DistABLPLoader`; one pass over it.
        negatives: A `DistNeighborLoader` over the nodes to draw from, with ``shuffle=True``: every
            epoch of it is another order.

    Raises:
        UsageError: ``negatives`` has no batches.
    """
    drawn = iter(negatives)
    for batch in links:
        try:
            negative = next(drawn)
        except StopIteration:
            drawn = iter(negatives)
            try:
                negative = next(drawn)
            except StopIteration:
                raise UsageError(
                    "the loader of negatives has no batches: give it input_nodes, and a batch_size "
                    "that is not larger than their number where drop_last=True"
                ) from None
        yield batch, negative


def in_batch_negative_mask(
    y_positive: Tensor | Mapping[int, Tensor],
    candidates: Tensor,
    num_anchors: int | None = None,
    *,
    same_type: bool = False,
) -> Tensor:
    """Return which candidates may serve each anchor as negatives: all but its positives.

    ::

        scores = anchors @ items[candidates].T      # [num_anchors, num_candidates]
        mask = in_batch_negative_mask(batch.y_positive, candidates)

    Args:
        y_positive: Of one supervision edge type, in either form.
        candidates: ``[num_candidates]`` int64, local indices of label nodes; repeats allowed.
        num_anchors: The batch size; needed for the form ``[2, num_labels]``.
        same_type: Anchors and candidates are of one type: no anchor is a negative of itself.
            Anchors are then distinct.

    Returns:
        ``[num_anchors, num_candidates]`` bool, on the device of ``candidates``.

    Raises:
        ConfigError: ``num_anchors`` is missing.
    """
    links = _as_links(y_positive)
    if num_anchors is None:
        if isinstance(y_positive, Tensor):
            raise ConfigError("with labels as a tensor, num_anchors=batch.batch_size is needed")
        num_anchors = len(y_positive)
    # Candidates may repeat: each is looked at once, and its column comes as often as it does.
    distinct, column = torch.unique(candidates, return_inverse=True)
    allowed = torch.ones((num_anchors, distinct.numel()), dtype=torch.bool, device=distinct.device)
    if same_type:
        # Anchors are the first nodes of their type, so anchor i is node i, among candidates too.
        own = torch.arange(num_anchors, device=distinct.device)
        links = torch.cat([links.to(distinct.device), torch.stack([own, own])], dim=1)
    if distinct.numel():
        anchors, labels = links.to(distinct.device)
        # Beyond the last candidate there is no place: clamped, such a label is found to be none. By
        # look-up: comparing all labels with all candidates would not fit the memory of a large
        # batch.
        positions = torch.searchsorted(distinct, labels.contiguous()).clamp(
            max=distinct.numel() - 1
        )
        # a label that is no candidate meets another one there: it says nothing of it
        known = distinct[positions] == labels
        allowed[anchors[known], positions[known]] = False
    return allowed[:, column]


def _as_links(labels: Tensor | Mapping[int, Tensor]) -> Tensor:
    """Return the labels of one supervision edge type as ``[2, num_labels]`` int64."""
    if isinstance(labels, Tensor):
        return labels
    rows = list(labels.values())
    if not rows:
        return torch.empty((2, 0), dtype=torch.int64)
    found = torch.cat(rows)
    # By their keys, as a user may have left anchors out of the dict.
    anchors = torch.tensor(list(labels), device=found.device)
    counts = torch.tensor([row.numel() for row in rows], device=found.device)
    return torch.stack([torch.repeat_interleave(anchors, counts), found])
