"""`DistSubGraphLoader`: the subgraph induced by a neighbourhood, as graphlearn-torch has it."""

from typing import ClassVar, Unpack

from gigl_loader._glt import Dataset
from gigl_loader.loader.config import NumNeighbors
from gigl_loader.loader.inputs import NodeInput
from gigl_loader.loader.keywords import AllKeywords, with_keywords
from gigl_loader.loader.neighbor import DistNeighborLoader
from gigl_loader.loader.sampler_choice import SamplerClass
from gigl_loader.loader.time_input import TimeInput
from gigl_loader.remote.dataset import RemoteDistDataset


@with_keywords(like=DistNeighborLoader, subgraph_type="induced")
class DistSubGraphLoader(DistNeighborLoader):
    """Yields all edges between the nodes of a k-hop neighbourhood, whoever owns them.

    A batch holds each node once; ``mapping`` (``[batch_size]`` int64, local) tells where its seeds
    are. GLT's order of arguments. Where GLT sorts the nodes, here the seeds come first.

    Args:
        dataset: As in `DistNeighborLoader`.
        input_nodes: As in `DistNeighborLoader`.
        num_neighbors: Neighbours per hop; None: the subgraph of the seeds alone.
        **keywords: Those of `DistNeighborLoader`; ``subgraph_type`` is ``"induced"`` unless given.

    Raises:
        ConfigError: A value cannot work; nothing was started.
        PeerError: A worker could not be started; none is left.
    """

    _sampler_class: ClassVar[SamplerClass | None] = (
        "gigl_loader.sampler.neighbor.subgraph_sampler", {},
    )  # fmt: skip

    def __init__(
        self,
        dataset: Dataset | RemoteDistDataset,
        input_nodes: NodeInput | None = None,
        num_neighbors: NumNeighbors | None = None,
        *,
        input_time: TimeInput | None = None,
        **keywords: Unpack[AllKeywords],
    ) -> None:
        fanout = [0] if num_neighbors is None else num_neighbors
        keywords.setdefault("subgraph_type", "induced")
        super().__init__(dataset, fanout, input_nodes, input_time=input_time, **keywords)
