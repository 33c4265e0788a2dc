"""`DistNeighborLoader`: k-hop neighbourhoods of given nodes, in both deployments."""

from typing import Any, ClassVar, Unpack

import torch
from torch import Tensor

from gigl_loader._glt import Dataset, NodeSamplerInput
from gigl_loader.client.dataset import RemoteDistDataset
from gigl_loader.dataset.local import DistDataset
from gigl_loader.dataset.schema import NodeType
from gigl_loader.loader.args import LoaderOptions
from gigl_loader.loader.assemble import start_loader
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.loader.config import Device, NumNeighbors, SamplerClass
from gigl_loader.loader.keywords import AllKeywords, LoaderKeywords, with_keywords
from gigl_loader.loader.runtime import DistributedContext
from gigl_loader.loader.seed_input import (
    NodeInput,
    TimeInput,
    add_times,
    add_times_by_server,
    check_servers,
    check_time_given,
    read_seeds,
    typed_by_server,
    typed_seeds,
)
from gigl_loader.message import INPUT_ID
from gigl_loader.options import SamplerOptions


@with_keywords()
class DistNeighborLoader(BaseDistLoader):
    """Yields the sampled k-hop neighbourhoods of batches of seeds as PyG `Data` or `HeteroData`.

    The same fanout, the same seeds and the same ``seed`` give the same batches on any number of
    workers, partitions and machines, colocated or from a graph store.

    Args:
        dataset: A ``DistDataset`` (ours or GLT's): colocated mode, sampling subprocesses of this
            process. A ``RemoteDistDataset``: graph-store mode.
        num_neighbors: Neighbours per hop, -1 for all: a list, or on a heterogeneous graph a dict by
            edge type.
        input_nodes: Seeds: global ids as an int64 tensor, an array or a list, or a bool mask over
            all nodes of the type; with a mask ``input_id`` is the node id, as in PyG. Colocated:
            seeds, ``(node_type, seeds)``, or None or a node type for all nodes that this partition
            owns. Graph store: ``{server_rank: seeds}`` or ``(node_type, {server_rank: seeds})``.
            Colocated, the processes of a machine with the same seeds split them contiguously; a
            process with its own seeds, such as those of its own partition, keeps them all.
        num_workers: Sampling processes of this loader. 0: this process samples each batch when the
            loop requests it.
        batch_size: Seeds per batch.
        context: Deprecated; see `BaseDistLoader.resolve_runtime`.
        local_process_rank: Deprecated, with ``context``.
        local_process_world_size: Deprecated, with ``context``.
        pin_memory_device: GiGL's name for ``device``.
        worker_concurrency: Batches that a worker, or with ``exchange="collective"`` this process,
            samples at a time.
        channel_size: Limit on the shared memory of sampled batches: bytes, or a string as ``"4GB"``
            (10^9) or ``"4GiB"`` (2^30).
        prefetch_size: Graph store only: batches to request ahead from each server. None: as many as
            ``worker_concurrency``, at least 4.
        process_start_gap_seconds: None: a local rank starts its workers when the local rank before
            it is ready, so that memory peaks do not add up. A number: local rank ``i`` starts them
            ``i`` times this many seconds later.
        num_cpu_threads: Threads of torch operations of this process, on a CPU device. None: torch's
            own number.
        shuffle: Shuffle the seeds every epoch.
        drop_last: Leave out an incomplete last batch.
        with_weight: Draw neighbours by edge weight.
        sampler_options: Another sampler, or again the fanout.
        non_blocking_transfers: Copy to a CUDA device on a side stream, ahead of use.
        input_time: The time of each seed, ``[num_seeds]`` numbers; with a graph store by server.
            None: the seeds' own ``time_attr``.
        **keywords: Those of `gigl_loader.loader.keywords.LoaderKeywords`.

    Raises:
        ConfigError: A value cannot work; nothing was started.
        PeerError: A worker could not be started; none is left.
    """

    _sampler_class: ClassVar[SamplerClass | None] = None
    """Sampler class of the workers; None: the plain k-hop sampler."""

    def __init__(
        self,
        dataset: Dataset | RemoteDistDataset,
        num_neighbors: NumNeighbors,
        input_nodes: NodeInput | None = None,
        num_workers: int = 1,
        batch_size: int = 1,
        context: DistributedContext | None = None,
        local_process_rank: int | None = None,
        local_process_world_size: int | None = None,
        pin_memory_device: Device | None = None,
        worker_concurrency: int = 4,
        channel_size: int | str = "4GB",
        prefetch_size: int | None = None,
        process_start_gap_seconds: float | None = None,
        num_cpu_threads: int | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
        with_weight: bool = False,
        sampler_options: SamplerOptions | None = None,
        non_blocking_transfers: bool = True,
        *,
        input_time: TimeInput | None = None,
        **keywords: Unpack[LoaderKeywords],
    ) -> None:
        options = LoaderOptions.of(locals())
        check_time_given(input_time, options.expansion)
        sampler = self._sampler_class
        start_loader(
            self, dataset, options,
            local=lambda data: (add_times(local_input(data, input_nodes), input_time), sampler),
            store=lambda store: (
                add_times_by_server(remote_input(store, input_nodes), input_time), sampler
            ),
        )  # fmt: skip


def local_input(data: DistDataset, input_nodes: Any) -> NodeSamplerInput:
    """Return the checked seeds of all processes of this machine; see `DistNeighborLoader`."""
    num_nodes = data.view().num_nodes
    node_type, given = typed_seeds(input_nodes, data.schema, num_nodes)
    # All that this partition owns: these are the ids in `node_ids`, not all nodes of the graph.
    if given is None:
        ids = data.node_ids
        given = ids[node_type] if isinstance(ids, dict) else ids
    return with_input_id(*read_seeds(given, num_nodes[node_type]), node_type)


def with_input_id(seeds: Tensor, input_id: Tensor | None, node_type: NodeType) -> NodeSamplerInput:
    """Return a sampler's input, with ``input_id`` as a column if it is not the seed's position."""
    sampler_input = NodeSamplerInput(seeds, node_type)
    sampler_input.extra = {} if input_id is None else {INPUT_ID: input_id}
    return sampler_input


def remote_input(dataset: Any, input_nodes: Any) -> list[NodeSamplerInput]:
    """Return the checked seeds of each storage server; see `DistNeighborLoader`."""
    node_type, by_server = typed_by_server(
        input_nodes, dataset.fetch_schema(), dataset.fetch_num_nodes()
    )
    servers = range(dataset.cluster_info.num_storage_nodes)
    check_servers(by_server, servers)
    nothing = torch.empty(0, dtype=torch.int64)
    # A mask's input ids are node ids, given ids' are positions. Servers' seeds are one input with
    # one column, so if one server has a mask all of them need the column.
    masked = any(input_id is not None for _, input_id in by_server.values())
    inputs = []
    for server in servers:
        seeds, input_id = by_server.get(server, (nothing, None))
        if masked and input_id is None:  # one column, of all servers' seeds
            input_id = seeds
        inputs.append(with_input_id(seeds, input_id, node_type))
    return inputs


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

    def _own_attributes(self) -> tuple[str, ...]:
        return ("mapping",)
