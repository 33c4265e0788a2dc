"""A sampler of one's own: random walks from the seeds, as roots of a `NeighborSampler`."""

import numpy as np

from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.plan import Draw, TreesAndTimes, draw_key
from gigl_loader.sampler.roots import NodeRoots

WALKS = 1 << 40  # in place of a hop in the keys of draws: above any that the library uses


class WalkRoots:
    """The seeds, and every node that a walk of ``length`` steps from each of them visits."""

    def __init__(self, store, plan, length):
        self._store, self._plan, self._length = store, plan, length
        self._seeds = NodeRoots(store, plan)
        (self._edge_type,) = plan.fanouts

    def place(self, request, nodes):
        placed = self._seeds.place(request, nodes)
        at, walk = request.seeds, np.arange(request.seeds.size)
        for step in range(self._length):
            key = draw_key(self._plan, request.ticket, WALKS + step, self._edge_type)
            question = Draw(self._edge_type, fanout=1, key=key)
            drawn = self._store.draw(
                question, at, TreesAndTimes(walk)
            )()  # walks that meet part again
            at, walk = drawn.neighbors, walk[drawn.counts > 0]
            nodes.label(self._plan.input_type, at)
        return placed


def walk_sampler(view, plan, peers, *, length):
    return NeighborSampler(view, plan, peers, lambda store: WalkRoots(store, plan, length))
