"""`RemoteDistDataset`: handle of a graph on storage servers."""

import contextlib
import json
import threading
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from gigl_loader.dataset.column_stats import col_stats_of
from gigl_loader.dataset.identity import Share, shares_of
from gigl_loader.dataset.one_or_by_type import Counts, EdgeInfo, NodeInfo
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    DatasetSchema,
    EdgeDir,
    EdgeType,
    NodeType,
    Split,
    label_to_message_passing,
    message_passing_to_negative_label,
    plain_edge_type,
)
from gigl_loader.errors import ConfigError, NotReadyError, PeerTimeoutError
from gigl_loader.graph_store.client.compute_process import current_cluster
from gigl_loader.graph_store.client.row_requests import StoreLookup
from gigl_loader.graph_store.wire.graph_store_info import GraphStoreInfo
from gigl_loader.graph_store.wire.requests import NodeIdsRequest
from gigl_loader.graph_store.wire.signatures import MOST_PORTS
from gigl_loader.runtime.ranks.collectives import broadcast_value
from gigl_loader.runtime.transport.failures import Failure, describe, rebuild
from gigl_loader.sampler.options import DEFAULT_RECONNECT_S, DEFAULT_TIMEOUT_S, check_reconnect
from gigl_loader.sources.held_seeds import HeldPart, HeldSeeds, RemoteSamplerInput
from gigl_loader.sources.remote_interface import FETCHED_AS, ABLPInputNodes

# The others wait at the barrier while local rank 0 calls the servers: by default for 120 s, and
# 60 s more if a server is away.
_SHARING_TIMEOUT_S = 600.0
_READ_S = 60.0
"""Seconds that the processes of a machine wait until all have read why a fetch failed."""

T = TypeVar("T")


class RemoteDistDataset:
    """The graph of a storage cluster, as compute processes see it.

    Args:
        cluster_info: The clusters, as given to `init_compute_process`.
        local_rank: Rank of this process on its machine.
        mp_sharing_dict: A ``Manager().dict()`` that the processes of this machine share. With it,
            local rank 0 fetches ids and labels, and the others map the same memory.
        mp_barrier: A barrier of these processes. All of them have to make the same fetches.
        timeout: Seconds that each ``fetch_*`` may take.
        reconnect_timeout: Longest absence in seconds of a storage server without a replica. 0: a
            lost server is an error at once.

    Raises:
        ConfigError: A value cannot work.
    """

    def __init__(
        self,
        cluster_info: GraphStoreInfo,
        local_rank: int,
        mp_sharing_dict: MutableMapping[str, Any] | None = None,
        mp_barrier: threading.Barrier | None = None,
        *,
        timeout: float = DEFAULT_TIMEOUT_S,
        reconnect_timeout: float = DEFAULT_RECONNECT_S,
    ) -> None:
        check_reconnect(reconnect_timeout)
        if (mp_sharing_dict is None) != (mp_barrier is None):
            raise ConfigError("mp_sharing_dict and mp_barrier are given together, or neither is")
        self.cluster_info = cluster_info
        """Addresses and sizes of both clusters."""
        self.local_rank = local_rank
        """Rank of this process on its machine."""
        self._sharing_dict: Any = mp_sharing_dict
        self._barrier: Any = mp_barrier
        self._schema: DatasetSchema | None = None
        self._timeout_s, self._reconnect_timeout = timeout, reconnect_timeout
        self._lookup: StoreLookup | None = None

    def __repr__(self) -> str:
        """Name the cluster and known facts of the graph; this sends no request."""
        info, types = self.cluster_info, ""
        if self._schema is not None:
            count = 1 if self._schema.edge_types is None else len(self._schema.edge_types)
            types = f", edge types={count}"
        return (
            f"RemoteDistDataset(servers={info.num_storage_nodes} at "
            f"{info.storage_cluster_master_ip}:{info.rpc_master_port}{types})"
        )

    # -- properties -----------------------------------------------------------------------------

    def fetch_schema(self) -> DatasetSchema:
        """Return types, feature widths and direction; requested once."""
        # cached, as it never changes and each loader needs it; two threads at once may request it
        # twice
        if self._schema is None:
            self._schema = cast("DatasetSchema", self._ask(0, "get_schema"))
        return self._schema

    def fetch_node_feature_info(self) -> NodeInfo:
        """Return width and dtype of the node features; a dict by type on a typed graph."""
        return self.fetch_schema().node_feature_info

    def fetch_edge_feature_info(self) -> EdgeInfo:
        """Return width and dtype of the edge features."""
        return self.fetch_schema().edge_feature_info

    def fetch_node_quantization_metadata(self) -> None:
        """Return None; GiGL's: packed columns are floats in batches."""

    def fetch_edge_quantization_metadata(self) -> None:
        """Return None; see `fetch_node_quantization_metadata`."""

    def fetch_edge_dir(self) -> EdgeDir:
        """Return the direction in which nodes are expanded."""
        return self.fetch_schema().edge_dir

    def fetch_edge_types(self) -> list[EdgeType] | None:
        """Return all edge types, label edge types included; None for a homogeneous graph."""
        return self.fetch_schema().edge_types

    def fetch_node_types(self) -> list[NodeType] | None:
        """Return all node types; None for a homogeneous graph."""
        return cast("list[NodeType] | None", self._ask(0, "get_node_types"))

    def fetch_edge_weights_registered(self) -> bool:
        """Return whether edges of some type have weights, for ``with_weight=True``."""
        return cast("bool", self._ask(0, "get_edge_weights_registered"))

    @property
    def num_classes(self) -> Counts:
        """Classes of the node labels, as `DistDataset.num_classes` gives them; 0 without labels.

        Types whose number the servers do not know are left out.
        """
        schema = self.fetch_schema()
        if schema.edge_types is not None:
            return dict(schema.num_classes)
        return schema.num_classes.get(DEFAULT_HOMOGENEOUS_NODE_TYPE, 0)

    @property
    def col_stats(self) -> dict[str, dict[str, dict[Any, Any]]]:
        """Statistics of the columns of a database; see `DistDataset.col_stats`."""
        return col_stats_of(json.loads(self._ask(0, "get_database")))

    def fetch_graph_identity(self) -> str:
        """Return the identity of the servers' graph; see `DistDataset.graph_identity`."""
        return cast("str", self._ask(0, "get_graph_identity"))

    def fetch_num_nodes(self) -> dict[NodeType, int]:
        """Return how many nodes of each type there are over all servers."""
        return cast("dict[NodeType, int]", self._ask(0, "get_num_nodes"))

    def fetch_num_edges(self) -> dict[EdgeType, int]:
        """Return how many edges of each type there are over all servers.

        Label edge types are included; types whose number the servers do not know are left out.
        """
        return cast("dict[EdgeType, int]", self._ask(0, "get_num_edges"))

    def fetch_node_partition_book(self, node_type: NodeType | None = None) -> Any:
        """Return the owner of each node of a type: GLT's range book, or a tensor."""
        return self._ask(0, "get_node_partition_book", node_type=node_type)

    def fetch_edge_partition_book(self, edge_type: EdgeType | None = None) -> Any:
        """Return the owner of each edge of a type; None where there is one partition."""
        return self._ask(0, "get_edge_partition_book", edge_type=edge_type)

    # -- input ----------------------------------------------------------------------------------

    def fetch_node_ids(
        self,
        rank: int | None = None,
        world_size: int | None = None,
        split: Split | None = None,
        node_type: NodeType | None = None,
    ) -> dict[int, Tensor]:
        """Return ``{server_rank: ids}``: the share of one compute rank.

        Whole servers are assigned contiguously, as in GiGL: of 4 servers, rank 0 of 2 gets all ids
        of servers 0 and 1. Of 3 servers, rank 0 of 2 gets server 0 and the first half of server 1.

        Args:
            rank: Rank of the share (a process, or in GiGL's scripts a machine); None, with
                ``world_size``: everything.
            world_size: Number of shares.
            split: ``"train"``, ``"val"`` or ``"test"``; None: all nodes.
            node_type: Required on a heterogeneous graph.

        Returns:
            ``[n]`` int64 by server, of every server, empty where the rank has no share of it; in
            rank order the shares of a server concatenate to all of it.

        Raises:
            ConfigError: A share is out of range; the graph has no such split or type.
        """
        request = NodeIdsRequest(split=split, node_type=node_type)
        shares: dict[int, Tensor] = self._fetch_shares(
            "get_node_ids",
            request,
            rank,
            world_size,
            lambda ids: ids,
            lambda ids, share: share.cut(ids),
        )
        name = "all" if split is None else f"the {split} split"
        if rank is not None:
            name = f"this rank's share of {name}"
        for ids in shares.values():
            setattr(ids, FETCHED_AS, name)  # a loader's line in the log names what it samples
        return shares

    def fetch_held_seeds(
        self, by_server: Mapping[int, RemoteSamplerInput], node_type: NodeType
    ) -> dict[int, HeldSeeds]:
        """Return the input of each server, whose ids stay there; each server counts its own.

        Args:
            by_server: What each server reads.
            node_type: Type of the seeds.

        Raises:
            ConfigError: A server cannot read them.
        """
        parts = {
            server: HeldPart(
                server=server,
                count=0,
                split=getattr(seeds, "split", None),
                path=getattr(seeds, "node_path", None),
            )
            for server, seeds in by_server.items()
        }
        each = {server: {"part": part, "node_type": node_type} for server, part in parts.items()}
        counts = self._ask_each("get_num_seeds", each)
        return {
            server: HeldSeeds([replace(part, count=counts[server])], node_type)
            for server, part in parts.items()
        }

    def fetch_ids_of(self, held: HeldSeeds) -> Tensor:
        """Return the ids of seeds that stay on the servers, ``[len(held)]`` int64, part by part.

        Raises:
            ConfigError: They have changed since they were counted, or cannot be read.
        """
        each = {part.server: {"part": part, "node_type": held.input_type} for part in held.parts}
        ids = self._ask_each("get_seeds", each)
        for part in held.parts:
            part.check_same(ids[part.server], part.server)
        return torch.cat([torch.empty(0, dtype=torch.int64, device="cpu"), *ids.values()])

    def fetch_ablp_input(
        self,
        split: Split | None,
        rank: int | None = None,
        world_size: int | None = None,
        anchor_node_type: NodeType | None = None,
        supervision_edge_type: EdgeType | None = None,
    ) -> dict[int, ABLPInputNodes]:
        """Return ``{server_rank: anchors with their labels}``, handed out as by `fetch_node_ids`.

        Args:
            split: Of the anchors; None: all nodes.
            rank: Whose share; None, with ``world_size``: everything.
            world_size: Number of shares.
            anchor_node_type: None: the source of ``supervision_edge_type``.
            supervision_edge_type: Edges to predict; None: those of a labeled-homogeneous graph.

        Raises:
            ConfigError: The graph has no such split, type or labels.
        """
        if supervision_edge_type is not None:
            supervision_edge_type = plain_edge_type(supervision_edge_type)
        return self._fetch_shares(
            "get_ablp_input",
            NodeIdsRequest(split=split, node_type=anchor_node_type),
            rank,
            world_size,
            _nodes_of,
            ABLPInputNodes.cut,
            supervision_edge_type=supervision_edge_type,
        )

    def _fetch_shares(
        self,
        name: str,
        request: NodeIdsRequest,
        rank: int | None,
        world_size: int | None,
        read: Callable[[Any], T],
        cut: Callable[[T, Share], T],
        **more: Any,
    ) -> dict[int, T]:
        """Return a rank's share of each server's values.

        Args:
            name: The method of `DistServer` to call.
            request: Its request for everything of a server.
            rank: Rank of the share.
            world_size: Number of shares.
            read: Makes the user's values from a server's response.
            cut: Returns a share of the values.
            more: Further arguments of the method.
        """
        servers = range(self.cluster_info.num_storage_nodes)
        shares = shares_of(len(servers), rank, world_size)

        def ask(shares: dict[int, Share]) -> dict[int, Any]:
            each = {
                server: {"request": replace(request, share=share, server=server), **more}
                for server, share in shares.items()
            }
            return self._ask_each(name, each)

        if self._sharing_dict is None:
            values = {server: read(answer) for server, answer in ask(shares).items()}
        else:
            everything = shares_of(len(servers), None, None)
            # The ranks of this machine have different shares: each cuts its own from the same
            # memory.
            wanted = (request.split, request.node_type, *more.values())
            whole = self._once((name, *wanted), lambda: ask(everything))
            values = {server: cut(read(whole[server]), share) for server, share in shares.items()}
        # every rank has a share of some server, as shares divide one line; see `shares_of`
        nothing = cut(next(iter(values.values())), Share(0, 0))
        return {server: values.get(server, nothing) for server in servers}

    def fetch_free_ports_on_storage_cluster(self, num_ports: int) -> list[int]:
        """Return ports that are free on storage server 0, the same on all compute processes.

        All compute processes have to call it.

        Raises:
            NotReadyError: ``torch.distributed`` is not up.
            PeerError: Another compute process is gone.
            ConfigError: So many ports are not free there, or the number is below 0.
        """
        if not dist.is_initialized():
            raise NotReadyError(
                "ports are agreed on over torch.distributed: init_compute_process first"
            )
        ports: list[int] | Failure | None = None
        if dist.get_rank() == 0:
            try:
                ports = self._free_ports(num_ports)
            except Exception as error:  # sent to the other ranks, which wait for a result
                ports = describe(error)
        ports = broadcast_value(ports, dist.get_world_size(), list[int] | Failure | None)
        if isinstance(ports, Failure):
            raise rebuild(ports, "rank 0")
        return cast("list[int]", ports)

    def _free_ports(self, count: int) -> list[int]:
        found: dict[int, None] = {}
        while len(found) != count:
            before, most = len(found), min(count - len(found), MOST_PORTS)
            found |= dict.fromkeys(self._ask(0, "get_free_ports", num_ports=most))
            if len(found) == before:  # each answer is drawn from the same ports
                raise ConfigError(f"storage server 0 told {before} free ports, not {count}")
        return list(found)

    # -- rows of all servers --------------------------------------------------------------------

    def get_features(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """Return the features of nodes of any server; each process alone.

        Args:
            ids: ``[n]`` int64, global; repeats allowed.
            node_type: None where one type has features.

        Raises:
            ConfigError: There is no such id or feature.
            PeerTimeoutError: A server did not respond in time.
            ServerDiedError: A server is gone.
        """
        name = self.lookup.type_of("node_features", node_type)
        return self.lookup.rows("node_features", name, ids)

    def get_labels(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """Return the labels of nodes of any server, as `get_features` does features."""
        name = self.lookup.type_of("node_labels", node_type)
        return self.lookup.rows("node_labels", name, ids)

    @property
    def lookup(self) -> StoreLookup:
        """Fetches rows and edges from the servers."""
        if self._lookup is None:
            self._lookup = StoreLookup(self, self._timeout_s, self._reconnect_timeout)
        return self._lookup

    # -- how ------------------------------------------------------------------------------------

    def _ask(self, server_rank: int, name: str, **arguments: Any) -> Any:
        return self._ask_each(name, {server_rank: arguments})[server_rank]

    def _ask_each(self, name: str, requests: dict[int, dict[str, Any]]) -> dict[int, Any]:
        cluster = current_cluster()
        return cluster.ask_each(name, requests, self._timeout_s, self._reconnect_timeout)

    def _once(self, key: tuple[Any, ...], fetch: Callable[[], T]) -> T:
        """Let local rank 0 fetch, and give its result to all processes of this machine."""
        name = repr(key)
        if self.local_rank == 0 and name not in self._sharing_dict:
            try:
                result = _shared(fetch())
            except Exception as error:  # the others wait at the barrier
                result = error
            self._sharing_dict[name] = result
        try:
            self._barrier.wait(_SHARING_TIMEOUT_S)
        except Exception as error:
            raise PeerTimeoutError(
                f"local rank {self.local_rank}: the processes of this machine did not all fetch "
                f"{name} within {_SHARING_TIMEOUT_S:.0f} s: a process died, or makes other fetches"
            ) from error
        if name not in self._sharing_dict:
            raise ConfigError(
                f"local rank 0 did not fetch {name}: all have to make the same fetches"
            )
        result = self._sharing_dict[name]
        if isinstance(result, Exception):
            # An error is kept only until all have read it, as the next fetch may succeed. All
            # processes come here, since all found the same.
            with contextlib.suppress(Exception):  # one or the manager died: `result` says more
                self._barrier.wait(_READ_S)
                if self.local_rank == 0:
                    del self._sharing_dict[name]
            raise result
        return cast("T", result)


def _nodes_of(answer: Any) -> ABLPInputNodes:
    """Return the response of ``DistServer.get_ablp_input`` in the user's form."""
    anchor_type, anchors, positives, negatives = answer
    labels = {}
    for label_type, table in positives.items():
        edge_type = label_to_message_passing(label_type)
        negative = (negatives or {}).get(message_passing_to_negative_label(edge_type))
        labels[edge_type] = (table, negative)
    return ABLPInputNodes(anchors, anchor_type, labels)


def _shared(value: Any) -> Any:
    """Return ``value`` with its tensors in shared memory."""
    if isinstance(value, Tensor):
        return value.share_memory_()
    if isinstance(value, dict):
        return {key: _shared(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_shared(item) for item in value)
    return value
