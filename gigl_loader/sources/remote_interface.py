"""What a loader knows of a dataset on a graph store, and the inputs that come from there.

Below all that talks to servers: a loader over a dataset of its own process imports nothing of it.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gigl_loader.dataset.identity import Share
from gigl_loader.dataset.schema import (
    DatasetSchema,
    EdgeType,
    NodeType,
    message_passing_to_negative_label,
    message_passing_to_positive_label,
)
from gigl_loader.errors import without_default_types
from gigl_loader.runtime.glt_classes import RemoteDistSamplingWorkerOptions
from gigl_loader.runtime.plain_values import check_count
from gigl_loader.sources.sampling_checks import check_workers

_MOST_WORKERS, _MOST_PREFETCHED = 1 << 10, 1 << 16
"""Most workers of a server's producer, and batches that one client prefetches."""
FETCHED_AS = "fetched_as"
"""Attribute of the ids that `fetch_node_ids` returns: what they were asked for, in words."""


class StoreInfo(Protocol):
    """The part of a ``GraphStoreInfo`` that a loader reads."""

    @property
    def num_storage_nodes(self) -> int:
        """Number of storage servers."""

    @property
    def compute_cluster_world_size(self) -> int:
        """Number of compute processes on all machines."""

    @property
    def storage_cluster_master_ip(self) -> str:
        """Address of storage server 0."""


class RemoteDataset(Protocol):
    """What a loader asks of a ``RemoteDistDataset``: an object that wraps one answers it, too."""

    @property
    def cluster_info(self) -> StoreInfo:
        """Addresses and sizes of both clusters."""

    def fetch_schema(self) -> DatasetSchema:
        """Return types, feature widths and direction."""

    def fetch_num_nodes(self) -> dict[NodeType, int]:
        """Return how many nodes of each type there are over all servers."""

    def fetch_edge_weights_registered(self) -> bool:
        """Return whether edges of some type have weights."""

    def fetch_node_ids(self) -> dict[int, Tensor]:
        """Return ``{server_rank: ids}``; by this method a loader tells a graph store."""

    def fetch_free_ports_on_storage_cluster(self, num_ports: int) -> list[int]:
        """Return ports that are free on storage server 0, the same on all compute processes."""


@dataclass(frozen=True)
class ABLPInputNodes:
    """Anchors and their labels on one server; field by field GiGL's class of this name."""

    anchor_nodes: Tensor
    """``[num_anchors]`` int64, global ids."""
    anchor_node_type: NodeType
    labels: dict[EdgeType, tuple[Tensor, Tensor | None]]
    """By supervision edge type: positives, and negatives or None, each ``[num_anchors, most]``
    int64, global ids, padded with -1."""

    @property
    def positive_labels(self) -> dict[EdgeType, Tensor]:
        """Positive labels by label edge type."""
        return {
            message_passing_to_positive_label(edge_type): positives
            for edge_type, (positives, _) in self.labels.items()
        }

    @property
    def negative_labels(self) -> dict[EdgeType, Tensor] | None:
        """Negative labels by label edge type; None: there are none."""
        found = {
            message_passing_to_negative_label(edge_type): negatives
            for edge_type, (_, negatives) in self.labels.items()
            if negatives is not None
        }
        return found or None

    def __repr__(self) -> str:
        anchors, named = self.anchor_nodes.numel(), (self.anchor_node_type, *self.labels)
        return without_default_types(
            f"ABLPInputNodes(anchors={anchors}, {', '.join(map(repr, named))})"
        )

    def cut(self, share: Share) -> "ABLPInputNodes":
        """Return the share of the anchors, with their labels."""
        labels = {
            edge_type: (share.cut(positives), None if negatives is None else share.cut(negatives))
            for edge_type, (positives, negatives) in self.labels.items()
        }
        return ABLPInputNodes(share.cut(self.anchor_nodes), self.anchor_node_type, labels)


def server_worker_options(
    *, num_workers: int, worker_concurrency: int, prefetch_size: int, **others: Any
) -> RemoteDistSamplingWorkerOptions:
    """Return GLT's options for workers of servers, on CPUs, with any ``prefetch_size``.

    Args:
        num_workers: Workers of each server.
        worker_concurrency: Batches that each of them samples at a time.
        prefetch_size: Batches that are requested ahead from each server.
        **others: All other arguments of GLT's class.

    Raises:
        ConfigError: A count is not positive, or more than any machine has.
    """
    # here, as servers make these of what clients send; GLT's class would change it in silence
    check_workers(num_workers, worker_concurrency)
    check_count(num_workers, "num_workers", most=_MOST_WORKERS)
    check_count(prefetch_size, "prefetch_size", most=_MOST_PREFETCHED)
    options = RemoteDistSamplingWorkerOptions(
        num_workers=num_workers,
        worker_devices=[torch.device("cpu")] * num_workers,
        worker_concurrency=worker_concurrency,
        prefetch_size=min(prefetch_size, num_workers * worker_concurrency),
        **others,
    )
    # set afterwards: GLT's limit is for its own buffer, which is not used
    options.prefetch_size = prefetch_size
    return options
