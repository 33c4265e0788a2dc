"""A push from some seeds, and what it gives each node."""

from typing import Any

import numpy as np

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGES
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODES
from gigl_loader.sampler.plan import Draw
from gigl_loader.sampler.ppr.ppr_push import ForwardPush, Neighbourhood, SeedScores
from gigl_loader.sampler.rows.reader import GraphReader


def push(store: GraphReader, seeds: list[int], alpha: float, eps: float, **how: Any) -> Any:
    fanout = how.pop("fanout", -1)
    around = Neighbourhood(store, {EDGES: (NODES, NODES)}, [NODES])
    around.reset({EDGES: Draw(EDGES, fanout, 5)})
    return around, ForwardPush(around, [EDGES], alpha, eps, **how).run(
        NODES, np.array(seeds, np.int64)
    )


def vector(around: Neighbourhood, scores: SeedScores, seed: int, num_nodes: int, name: str) -> Any:
    values = np.zeros(num_nodes)
    mine = scores.keys >> 32 == seed
    _, ids = around.ids(NODES, scores.keys[mine] & 0xFFFFFFFF)
    assert len(set(ids.tolist())) == ids.size, "a node has two scores"
    found = {
        "score": scores.score,
        "residual": scores.alpha * scores.slots["residual"],
        "hop": scores.slots["hop"],
    }
    values[ids] = found[name][mine]
    return values
