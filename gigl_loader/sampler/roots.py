"""What a batch grows from: the first of the three choices that make a sampler.

A sampler is roots x draw x expansion. `Roots` say which nodes a batch starts with and what it tells
of them; the plan says how neighbours are drawn (`gigl_loader.sampler.questions.Draw`) and how the
batch grows (`gigl_loader.sampler.expansion`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gigl_loader.dataset.schema import EdgeType
from gigl_loader.memory.segments import Array
from gigl_loader.message import BATCH, INPUT_ID, IS_HETERO, META, SEED_TIME, Field, key
from gigl_loader.sampler.nodes import BatchNodes
from gigl_loader.sampler.plan import SampleRequest, SamplingPlan
from gigl_loader.sampler.questions import Drawn
from gigl_loader.sampler.reader import GraphReader

EdgeFilter = Callable[[EdgeType, Array, Drawn], tuple[Array, Drawn]]
"""Takes drawn edges and the local labels of the nodes that each was drawn for (``[num_edges]``
int64); returns those to keep of both."""


@dataclass(frozen=True)
class Placed:
    """Fields that roots add to a batch, besides nodes."""

    fields: Sequence[Field]
    """What tells which seeds the batch is of, and all else that is told of them."""
    keep_edges: EdgeFilter | None = None
    """Which drawn edges stay; None: all."""


class Roots(Protocol):
    """Puts the roots of a batch down. One object per sampling thread."""

    def place(self, request: SampleRequest, nodes: BatchNodes) -> Placed:
        """Give the roots of ``request`` their labels in ``nodes``, which is empty."""
        ...


MakeRoots = Callable[[GraphReader], Roots]


class NodeRoots:
    """The seeds as they are given, repeats too."""

    def __init__(self, reader: GraphReader, plan: SamplingPlan) -> None:
        self._view, self._plan = reader.view, plan

    def place(self, request: SampleRequest, nodes: BatchNodes) -> Placed:
        """Put the seeds first."""
        # Repeats keep positions of their own, as in PyG: the first ``batch_size`` outputs are the
        # seeds.
        nodes.place(self._plan.input_type, request.seeds)
        return Placed(self.fields(request, nodes))

    def fields(self, request: SampleRequest, nodes: BatchNodes) -> list[Field]:
        """Return what says which seeds the batch is of."""
        hetero = self._view.is_heterogeneous
        input_type = self._plan.input_type if hetero else None
        fields = [
            Field.of(IS_HETERO, np.uint8(hetero)),
            Field.of(key(INPUT_ID, input_type), request.extra.get(INPUT_ID, request.input_id)),
        ]
        if not self._plan.expansion.in_trees:  # there, PyG's `batch` is the tree of each node
            fields.append(Field.of(key(BATCH, input_type), request.seeds))
        if nodes.seed_times is not None:
            fields.append(Field.of(key(SEED_TIME, input_type), nodes.seed_times))
        return fields


class DistinctRoots(NodeRoots):
    """The seeds, each node once; ``mapping`` of the batch tells where each seed is, as in GLT."""

    def place(self, request: SampleRequest, nodes: BatchNodes) -> Placed:
        """Put the seeds first."""
        labels = nodes.label(self._plan.input_type, request.seeds)
        return Placed([*self.fields(request, nodes), Field.of(META + "mapping", labels)])
