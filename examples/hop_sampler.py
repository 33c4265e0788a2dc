"""A sampler with a field of its own: the hop at which each node of a batch was found."""

import numpy as np

from gigl_loader.batch.message import META, NODES_PER_HOP
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.plan import Field


class HopSampler(NeighborSampler):
    """Gives batches of a homogeneous graph ``hop``, ``[num_nodes]`` int64, at most ``limit``."""

    def __init__(self, view, plan, peers, *, limit):
        super().__init__(view, plan, peers)
        self._limit = limit

    def sample(self, request):
        fields = super().sample(request)
        counts = next(field for field in fields if field.key == NODES_PER_HOP)
        per_hop = np.empty(counts.shape, counts.dtype)
        counts.write(per_hop)
        hops = np.minimum(np.arange(per_hop.size), self._limit)
        return [*fields, Field.of(f"{META}hop", np.repeat(hops, per_hop))]
