"""Types of values whose form depends on the graph: one value, or a dict by type.

A type checker knows neither the kind of a graph nor whether it has such a value. With the union,
each documented use would be an error: ``train_node_ids["paper"]`` of a tensor, ``len()`` of None.
So checkers see ``Any`` here, and readers of signatures see the union.
"""

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from torch_geometric.data import Dataset
    from torch_geometric.data.data import BaseData

    NodeIds: TypeAlias = Any
    SplitIds: TypeAlias = Any
    Counts: TypeAlias = Any
    EdgeCounts: TypeAlias = Any
    NodeInfo: TypeAlias = Any
    EdgeInfo: TypeAlias = Any
    # PyG declares `dataset[0]` so, and graphs are documented to come from there.
    PyGGraph: TypeAlias = BaseData | Dataset
    Graph: TypeAlias = Any
else:
    from torch import Tensor

    from gigl_loader.dataset.schema import EdgeType, FeatureInfo, NodeType

    NodeIds = Tensor | dict[NodeType, Tensor]
    SplitIds = NodeIds | None
    Counts = int | dict[NodeType, int]
    EdgeCounts = int | dict[EdgeType, int]
    NodeInfo = FeatureInfo | dict[NodeType, FeatureInfo] | None
    EdgeInfo = FeatureInfo | dict[EdgeType, FeatureInfo] | None
    PyGGraph = Graph = "Data | HeteroData"
