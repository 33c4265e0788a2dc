"""graphlearn-torch's loaders: its order of arguments, over the loaders of this package.

With ``RemoteDistSamplingWorkerOptions`` the servers sample. As there, the clients that name one
``worker_key`` and the same servers share an epoch: each batch comes to one of them.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch_geometric.data import HeteroData

import gigl_loader
from gigl_loader.compat.glt.roles import joined_dataset
from gigl_loader.compat.glt.scripts import Split
from gigl_loader.dataset.schema import EdgeDir, reverse_edge_type
from gigl_loader.errors import ConfigError
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.loader.options.glt_config import NumNeighbors
from gigl_loader.runtime.glt_classes import (
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from gigl_loader.runtime.ranks.collectives import COULD_NOT_BUILD, report_failure_to_ranks
from gigl_loader.sources.held_seeds import (
    RemoteNodePathSamplerInput,
    RemoteNodeSplitSamplerInput,
    RemoteSamplerInput,
)


class DistNeighborLoader(gigl_loader.DistNeighborLoader):
    """`gigl_loader.DistNeighborLoader` with graphlearn-torch's arguments.

    Args:
        data: The partition of this process; None with ``RemoteDistSamplingWorkerOptions``.
        num_neighbors: Neighbours per hop: a list, or a dict by edge type.
        input_nodes: Seeds, or ``(node_type, seeds)``. From servers, seeds stay there: a ``Split``,
            one path, or a path for each server, with ids of ``torch.save``; or the objects that
            stand for these, ``RemoteNodeSplitSamplerInput`` and ``RemoteNodePathSamplerInput``.
            Ids that are given go to the first server.
        batch_size: Seeds per batch.
        shuffle: Shuffle the seeds every epoch.
        drop_last: Leave out an incomplete last batch.
        with_edge: Whether batches have edge ids.
        with_weight: Draw neighbours by edge weight.
        edge_dir: Direction of the dataset.
        collect_features: Not looked at: features always come.
        to_device: Device of the batches; None: this process's CUDA device, or the CPU.
        random_seed: Decides shuffle and draws.
        worker_options: Where batches are sampled; None, or ``CollocatedDistSamplingWorkerOptions``:
            in this process. Addresses, ports, devices and RPC threads are not looked at.

    Raises:
        ConfigError: A value cannot work; nothing was started.
        UsageError: This process is not a client.
        PeerError: A worker could not be started.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: NumNeighbors,
        input_nodes: Any,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        with_weight: bool = False,
        edge_dir: EdgeDir = "out",
        collect_features: bool = False,
        to_device: Any = None,
        random_seed: int | None = None,
        worker_options: Any = None,
    ) -> None:
        super().__init__(
            num_neighbors=num_neighbors,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            with_edge=with_edge,
            with_weight=with_weight,
            device=to_device,
            seed=random_seed,
            **_places(self, data, "input_nodes", input_nodes, edge_dir, worker_options),
        )


class DistSubGraphLoader(gigl_loader.DistSubGraphLoader):
    """`gigl_loader.DistSubGraphLoader` with graphlearn-torch's arguments.

    They are those of `DistNeighborLoader`, in another order.
    """

    def __init__(
        self,
        data: Any,
        input_nodes: Any,
        num_neighbors: NumNeighbors | None = None,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        with_weight: bool = False,
        edge_dir: EdgeDir = "out",
        collect_features: bool = False,
        to_device: Any = None,
        random_seed: int | None = None,
        worker_options: Any = None,
    ) -> None:
        super().__init__(
            num_neighbors=num_neighbors,
            batch_size=batch_size,
            shuffle=shuffle,
            drop_last=drop_last,
            with_edge=with_edge,
            with_weight=with_weight,
            device=to_device,
            seed=random_seed,
            **_places(self, data, "input_nodes", input_nodes, edge_dir, worker_options),
        )


class DistLinkNeighborLoader(gigl_loader.DistLinkNeighborLoader):
    """`gigl_loader.DistLinkNeighborLoader` with graphlearn-torch's arguments.

    ``batch.edge_label_index`` has graphlearn-torch's rows: destinations over sources, as
    ``edge_index`` of a graph whose nodes are expanded along outgoing edges. With several types, so
    it is for ``edge_dir="out"`` alone, in the store of the reversed type, and so is
    ``edge_label``; for ``"in"`` sources are above.

    The arguments are those of `DistNeighborLoader`, with seed edges in place of seeds:
    ``edge_label_index``, ``[2, num_edges]`` int64 or ``(edge_type, index)``, and their labels
    ``edge_label``, ``[num_edges, ...]``. From servers, the first one samples. ``neg_sampling`` is
    ``"binary"``, ``"triplet"``, or a ``NegativeSampling``.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: NumNeighbors,
        batch_size: int = 1,
        edge_label_index: Any = None,
        edge_label: torch.Tensor | None = None,
        neg_sampling: Any = None,
        shuffle: bool = False,
        drop_last: bool = False,
        with_edge: bool = False,
        with_weight: bool = False,
        edge_dir: EdgeDir = "out",
        collect_features: bool = False,
        to_device: Any = None,
        random_seed: int | None = None,
        worker_options: Any = None,
    ) -> None:
        places = _places(self, data, "edge_label_index", edge_label_index, edge_dir, worker_options)
        if isinstance(worker_options, RemoteDistSamplingWorkerOptions) and edge_label is not None:
            edge_label = {_servers_of(worker_options)[0]: edge_label}  # type: ignore[assignment]  # a tensor until here
        super().__init__(
            num_neighbors=num_neighbors,
            batch_size=batch_size,
            edge_label=edge_label,
            neg_sampling=neg_sampling,
            shuffle=shuffle,
            drop_last=drop_last,
            with_edge=with_edge,
            with_weight=with_weight,
            device=to_device,
            seed=random_seed,
            transform=partial(_with_rows_turned, edge_dir),
            **places,
        )


def _with_rows_turned(edge_dir: EdgeDir, batch: Any) -> Any:
    """Turn the rows of the seed edges of a batch; with "out", those of a type to its reverse."""
    if not isinstance(batch, HeteroData):
        if "edge_label_index" in batch:  # triplets have none
            batch.edge_label_index = batch.edge_label_index.flip(0)
        return batch
    for store in batch.edge_stores if edge_dir == "out" else ():
        if "edge_label_index" in store:
            turned = batch[reverse_edge_type(store._key)]
            turned.edge_label_index = store.pop("edge_label_index").flip(0)
            if "edge_label" in store:
                turned.edge_label = store.pop("edge_label")
            return batch
    return batch


@report_failure_to_ranks(COULD_NOT_BUILD)  # or they would wait for this one
def _places(
    loader: BaseDistLoader, data: Any, name: str, seeds: Any, edge_dir: EdgeDir, options: Any
) -> dict[str, Any]:
    """Return a loader's dataset, its seeds by ``name``, and where they are sampled.

    Raises:
        ConfigError: They do not fit together.
    """
    is_remote = isinstance(options, RemoteDistSamplingWorkerOptions)
    if is_remote == (data is not None):
        raise ConfigError(
            "data is the partition of this process, and None with RemoteDistSamplingWorkerOptions, "
            f"by which servers sample theirs: got {type(data).__name__} and "
            f"{type(options).__name__}"
        )
    dataset: Any = joined_dataset() if is_remote else gigl_loader.DistDataset.wrap(data)
    own_dir = dataset.fetch_edge_dir() if is_remote else dataset.edge_dir
    if edge_dir != own_dir:
        raise ConfigError(
            f"edge_dir={edge_dir!r}, but this dataset's nodes are expanded along {own_dir!r}: give "
            f"edge_dir={own_dir!r}, or make the dataset with the other"
        )
    places: dict[str, Any] = {"dataset": dataset, name: seeds}
    if is_remote:
        servers = _servers_of(options)
        loader.shared_by = f"{options.worker_key} on servers {servers}"
        places |= {
            name: by_server(seeds, servers),
            "channel_size": options.buffer_size,
            "prefetch_size": options.prefetch_size,
            "shard": "none",
        }
    elif isinstance(options, MpDistSamplingWorkerOptions):
        places["channel_size"] = options.channel_size
    else:
        exchange = "workers" if dataset.num_partitions == 1 else "collective"
        return {**places, "num_workers": 0, "exchange": exchange}
    workers = {"num_workers": options.num_workers, "worker_concurrency": options.worker_concurrency}
    return {**places, **workers}


def _servers_of(options: Any) -> list[int]:
    servers = options.server_rank
    return [servers] if isinstance(servers, int) else list(servers)


def by_server(seeds: Any, servers: list[int]) -> Any:
    """Return the seeds of a loader by server, in the form that our own loaders take.

    Args:
        seeds: As the user gave them.
        servers: The servers that the user named.

    Raises:
        ConfigError: There are not as many inputs as servers.
    """
    is_typed = isinstance(seeds, tuple) and len(seeds) == 2 and isinstance(seeds[0], str | tuple)
    seed_type, given = seeds if is_typed else (None, seeds)
    if isinstance(given, Split):
        given = RemoteNodeSplitSamplerInput(given, seed_type)
    if isinstance(given, RemoteNodeSplitSamplerInput):
        return dict.fromkeys(servers, given)
    if isinstance(given, str | RemoteSamplerInput):
        given, servers = [given], servers[:1]
    if isinstance(given, list) and given and isinstance(given[0], str | RemoteSamplerInput):
        if len(given) != len(servers):
            raise ConfigError(
                f"{len(given)} inputs were given for servers {servers}: give one for each"
            )
        return {
            server: RemoteNodePathSamplerInput(one, seed_type) if isinstance(one, str) else one
            for server, one in zip(servers, given, strict=True)
        }
    if isinstance(given, Mapping):
        return seeds
    return (seed_type, {servers[0]: given}) if is_typed else {servers[0]: given}
