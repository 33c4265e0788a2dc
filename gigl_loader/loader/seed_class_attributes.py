"""The attributes of GLT's ``DistLoader`` that subclasses of it read, kept as they change.

Values are those that GiGL's ``BaseDistLoader`` sets. They do not depend on GLT being installed.
"""

import math
from typing import Any

from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    DatasetSchema,
    EdgeType,
    NodeType,
    edge_type_str,
    glt_edge_type,
    reverse_edge_type,
)
from gigl_loader.loader.deployment.job_ranks import DistributedRuntimeInfo
from gigl_loader.loader.epochs.epoch import LoaderStats
from gigl_loader.loader.epochs.iterator import Epochs
from gigl_loader.runtime.glt_classes import SamplingConfig
from gigl_loader.sources.batch_source import BatchSource

OF_CONFIG = (
    "sampling_type",
    "num_neighbors",
    "batch_size",
    "shuffle",
    "drop_last",
    "with_edge",
    "with_weight",
    "collect_features",
    "edge_dir",
)


class AnswersGLT:
    """A base of `BaseDistLoader`, which sets what these attributes are made of."""

    _shutdowned = True
    """GLT's name; also set for a loader whose constructor raised before anything was started."""
    edge_dir: str
    _source: BatchSource
    _epochs: Epochs
    _stats: LoaderStats
    _is_remote_worker: bool
    _given_dataset: Any
    _dataset_schema: DatasetSchema
    _runtime: DistributedRuntimeInfo
    input_data: Any
    sampling_config: SamplingConfig
    worker_options: Any
    _mp_producer: Any = None
    """GLT's name for the producer of a colocated loader; None if this process samples."""
    _channel: Any
    """GLT's name for the channel of messages."""

    def _set_glt_attributes(self) -> None:
        runtime, dataset, inputs = self._runtime, self._given_dataset, self.input_data
        self._is_mp_worker = not self._is_remote_worker
        self._is_collocated_worker = False
        # All deployments have GLT's channel, though our workers may not use it.
        self._with_channel = True
        if self._is_remote_worker:
            self.data = None
            self.num_data_partitions = dataset.cluster_info.num_storage_nodes
            self.data_partition_idx = runtime.node_rank
            self._input_data_list = inputs = list(inputs)
        else:
            self.data = dataset
            self.num_data_partitions = getattr(dataset, "num_partitions", 1)
            self.data_partition_idx = getattr(dataset, "partition_idx", 0)
            inputs = [inputs]
        for name in OF_CONFIG:
            setattr(self, name, getattr(self.sampling_config, name))
        self._input_type = inputs[0].input_type if inputs else None
        types = _types_of(self._dataset_schema, is_remote=self._is_remote_worker)
        self._set_ntypes_and_etypes(*types)

    def _set_ntypes_and_etypes(
        self, node_types: list[NodeType] | None, edge_types: list[EdgeType] | None
    ) -> None:
        """Set the types of the graph, and the edge types of batches, as GLT names them.

        Args:
            node_types: Their names; None: the graph is homogeneous.
            edge_types: As the edges are stored; batches have them by the direction of messages.
        """
        self._node_types, self._edge_types = node_types, edge_types
        self._reversed_edge_types: list[EdgeType] = []
        self._etype_str_to_rev: dict[str, EdgeType] = {}
        for edge_type in edge_types or ():
            # GLT samples along edges that point in, and messages of its workers have the reverse
            # of their type; batches have the edges' own type, or for "out" the reverse.
            reverse = reverse_edge_type(edge_type)
            in_batch, in_message = edge_type, reverse
            if self.edge_dir == "out":
                in_batch, in_message = reverse, edge_type
            self._reversed_edge_types.append(in_batch)
            self._etype_str_to_rev[edge_type_str(in_message)] = in_batch

    @property
    def _num_recv(self) -> int:
        """GLT's name for the batches of the epoch that were received."""
        return self._stats.num_received

    @property
    def _epoch(self) -> int:
        """GLT's name for the number of epochs; here the number of the next one."""
        return self._epochs.next_epoch

    @property
    def _num_expected(self) -> float:
        """GLT's name for this rank's batches of an epoch.

        Infinite for a graph store, as in GLT, where the servers tell the end; `len` has the number.
        """
        return math.inf if self._is_remote_worker else self._epochs.num_steps

    @property
    def _server_rank_list(self) -> list[int]:
        """GLT's name for the storage servers that sample: those that take part at this moment."""
        self._check_remote("_server_rank_list")
        servers = self.worker_options.server_rank
        named = list(servers) if isinstance(servers, list | tuple) else [servers]
        # Without producers, as before the start and after the end, these are the servers asked for.
        return [server for server in named if server in self._ids_by_server()] or named

    @property
    def _producer_id_list(self) -> list[int]:
        """GLT's name for the producers of a loader, one on each server of `_server_rank_list`."""
        self._check_remote("_producer_id_list")
        if (given := vars(self).get("_producer_id_list")) is not None:  # by a subclass's hook
            return list(given)
        ids = self._ids_by_server()
        return [ids[server] for server in self._server_rank_list if server in ids]

    @_producer_id_list.setter
    def _producer_id_list(self, ids: list[int]) -> None:
        vars(self)["_producer_id_list"] = ids

    def _ids_by_server(self) -> Any:
        source: Any = getattr(self, "_source", None)  # GLT's names are there before the source is
        return {} if source is None else source.producer_ids

    def _check_remote(self, name: str) -> None:
        # As in GLT a loader that samples here has no such attribute.
        if not self._is_remote_worker:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _types_of(
    schema: DatasetSchema, *, is_remote: bool
) -> tuple[list[NodeType] | None, list[EdgeType] | None]:
    """Return the node and edge types of a graph, as GiGL's loaders have them."""
    if schema.edge_types is None:
        # Of a homogeneous graph, GiGL's loaders name the type on a graph store alone.
        return ([DEFAULT_HOMOGENEOUS_NODE_TYPE], []) if is_remote else (None, None)
    edge_types = [glt_edge_type(name, schema.edge_dir) for name in schema.edge_types]
    ends = (end for source, _, target in edge_types for end in (source, target))
    return list(dict.fromkeys(ends)), edge_types
