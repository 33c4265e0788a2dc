"""A push from some seeds, and what it gives each node."""

from typing import Any

import numpy as np

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGES
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODES
from gigl_loader.sampler.ppr_push import ForwardPush, Neighbourhood, Slots
from gigl_loader.sampler.questions import Draw
from gigl_loader.sampler.reader import GraphReader


def push(store: GraphReader, seeds: list[int], alpha: float, eps: float, **how: Any) -> Any:
    fanout = how.pop("fanout", -1)
    around = Neighbourhood(store, {EDGES: (NODES, NODES)}, {EDGES: Draw(EDGES, fanout, 5)}, [NODES])
    return around, ForwardPush(around, [EDGES], alpha, eps, **how).run(NODES, np.array(seeds))


def vector(around: Neighbourhood, slots: Slots, seed: int, num_nodes: int, name: str) -> Any:
    values = np.zeros(num_nodes)
    mine = slots.seed == seed
    _, ids = around.ids(NODES, slots.node[mine])
    assert len(set(ids.tolist())) == ids.size, "a node has two slots"
    values[ids] = getattr(slots, name)[mine]
    return values
