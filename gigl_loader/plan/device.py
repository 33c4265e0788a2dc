"""Memory needs of a GPU that samples the graph itself; see `DistDataset.to`."""

from dataclasses import dataclass

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.errors import ConfigError
from gigl_loader.plan.expect import BatchSize
from gigl_loader.plan.needs import CONCURRENCY, Job
from gigl_loader.sampler.bounds import batch_bounds

SPARE = 0.9
"""Share of a GPU's memory that the graph and its batches may take: the model needs some, too."""
# Eight bytes each for the position of an edge, its neighbour, two labels and its place among the
# existing edges; and the keys and places that are sorted to give labels.
_PLACE_BYTES, _SORTED_BYTES = 5 * 8, 4 * 8
_HELD = 2
"""Batches beside those under way: the current one in training, and the next."""


@dataclass(frozen=True)
class DevicePlan:
    """Bytes of a GPU's memory by part."""

    gpu_gb: float
    """10**9 bytes of its memory."""
    structure: float
    """Edges, labels and the indexes of rows."""
    features: float
    """On the device, or in pinned memory of the host."""
    batches: float
    """Batches under way, with room for all neighbours that a draw may give."""

    @property
    def where(self) -> str:
        """Return ``"device"``, ``"host"`` (features in pinned memory) or ``"workers"``."""
        have = SPARE * self.gpu_gb * 1e9
        if self.structure + self.features + self.batches <= have:
            return "device"
        return "host" if self.structure + self.batches <= have else "workers"


def plan_device(job: Job, batch: BatchSize, gpu_gb: float) -> DevicePlan:
    """Return the memory of a GPU to sample the whole graph of a job.

    Args:
        job: The job; its machines and workers do not matter here.
        batch: The expected contents of its batches.
        gpu_gb: 10**9 bytes of the GPU's memory.

    Raises:
        ConfigError: A fan-out of -1 has no bound without the graph.
    """
    if any(fanout < 0 for fanout in job.num_neighbors):
        raise ConfigError(
            f"--gpu: num_neighbors {list(job.num_neighbors)} has -1, and a device makes room for "
            "all neighbours that it may draw: give a number for each hop"
        )
    nodes = round(job.nodes)
    bounds = batch_bounds(
        {EDGE: job.num_neighbors}, {NODE: job.batch_size}, {NODE: nodes}, edge_dir="in"
    )
    places, labels = bounds.edges[EDGE], bounds.nodes[NODE]
    row_bytes = job.row_bytes
    one = places * _PLACE_BYTES + (places + labels) * _SORTED_BYTES + batch.nodes * row_bytes
    index = 4 if job.nodes < 2**31 else 8
    return DevicePlan(
        gpu_gb,
        structure=8 * job.nodes + index * job.edges + 8 * job.nodes,
        features=job.nodes * row_bytes,
        batches=(CONCURRENCY + _HELD) * one,
    )
