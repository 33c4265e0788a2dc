"""Names that people import from GiGL, graphlearn-torch and PyG, and what takes their place here.

Paths of GiGL's whose names exist here are files in ``paths/``. A package answers the import of a
name that does not exist by a file in ``answers/``: the import system looks for a module of that
name, and takes its `ImportError` for the answer. A module cannot have such files; it answers by its
``__getattr__``.
"""

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

_V = TypeVar("_V")


def _each(names: str, value: _V) -> dict[str, _V]:
    return dict.fromkeys(names.split(), value)


_PARTITION = (
    "partition_graph(data, n, root) or partition_tables(...) writes partitions, and "
    "DistDataset.load(root, rank) reads one"
)
_BUILD = "DistDataset.from_pyg(data), DistDataset.load(root, rank), or build(partition_output=...)"
_STORE = "it is in gigl_loader.graph_store"
_JOIN = "gigl_loader.graph_store.init_compute_process(...) joins a graph store, and "
_OF_GLT = "gigl_loader.glt.distributed has it, for graphlearn-torch's scripts; or "
_SERVE = "gigl_loader.graph_store.run_storage_server(...), or `gigl-loader serve` in a shell"
_NO_RPC = (
    "there is no RPC to set up: loaders find their peers by torch.distributed, and "
    "gigl_loader.graph_store.request_server(...) calls a storage server"
)
_PLAIN = (
    "loaders take num_workers, worker_concurrency, channel_size and prefetch_size themselves; for "
    "a BaseDistLoader, its static methods create_colocated_worker_options(...) and "
    "create_graph_store_worker_options(...) make them"
)
_NODES = "DistNeighborLoader, after DistDataset.from_pyg(data)"
_LINKS = "DistLinkNeighborLoader, after DistDataset.from_pyg(data)"
_SAMPLER = "CustomSamplerOptions(path, keywords) takes a sampler of your own by its import path"
_ROLES = {
    "init_server": f"{_OF_GLT}{_SERVE}",
    "get_server": f"{_OF_GLT}{_SERVE}",
    "wait_and_shutdown_server": f"{_OF_GLT}{_SERVE}, which waits",
    **_each("init_client shutdown_client", f"{_OF_GLT}{_JOIN}shutdown_compute_process() leaves it"),
}
_CONTEXT = "BaseDistLoader.resolve_runtime() returns ranks, sizes and addresses"
_SUBGRAPHS = (
    "DistSubGraphLoader(dataset, seeds, num_neighbors), or CustomSamplerOptions for walks, as in "
    'the example of "Sampling"'
)

_LOGGER = 'logging.getLogger(__name__); loggers here are below "gigl_loader"'
_TYPE_VARIABLE = "a type variable of your own"
_PPR = "PPRSamplerOptions(...) of a loader; batches then have the edges in their stores"
_SERVERS_OWN = "loaders and servers make it themselves; DistServer has the calls"

_QUANTIZED = (
    "feature_dtype= of partition_tables(...) stores rows in fewer bits; batches have floats"
)
_OF_TENSORS = "torch's own functions; datasets and loaders here convert what they are given"
_CHANNEL = "BaseDistLoader.create_colocated_channel(...) makes the channel of a producer"
_RPC_GATHER = "torch.distributed.all_gather_object(...), or on_all_ranks(...) of gigl_loader"
_READY = "leave it out: compute processes wait for the servers when they join"

ADVICE: dict[str, dict[str, str]] = {
    "gigl_loader": {
        # GiGL
        "DatasetFactory": _BUILD,
        "DistPartitioner": _PARTITION,
        "DistRangePartitioner": f'{_PARTITION}; method="contiguous" gives ranges',
        "DistLinkPredictionDataset": "DistDataset, which holds labels, too",
        "DistLinkPredictionDataPartitioner": _PARTITION,
        "init_neighbor_loader_worker": "it is in gigl_loader.utils",
        "SamplingEngine": "a loader takes a DistDataset or a RemoteDistDataset, which decides it",
        "ColocatedSamplingEngine": "a loader of a DistDataset",
        "GraphStoreSamplingEngine": "a loader of a RemoteDistDataset",
        # graphlearn-torch
        "DistRandomPartitioner": f'{_PARTITION}; method="random" draws the owners',
        "DistTableRandomPartitioner": "partition_tables(...) reads tables within a memory limit",
        "RandomPartitioner": f'{_PARTITION}; method="random" draws the owners',
        "FrequencyPartitioner": f"{_PARTITION}; remote_cache= of a loader keeps hot rows",
        "DistTableDataset": "partition_tables(...), then DistDataset.load(root, rank)",
        "Dataset": "DistDataset",
        "DistGraph": "DistDataset, whose attribute graph has the edges of this partition",
        "PartialFeature": "DistFeature; DistDataset.get_features(ids) reads rows of all partitions",
        "DistLoader": "BaseDistLoader",
        "DistMpSamplingProducer": "DistSamplingProducer, which loaders make themselves",
        "DistCollocatedSamplingProducer": "num_workers=0 samples in the training process",
        "MpDistSamplingWorkerOptions": f"{_OF_GLT}{_PLAIN}",
        "CollocatedDistSamplingWorkerOptions": f"{_OF_GLT}num_workers=0 of a loader",
        "RemoteDistSamplingWorkerOptions": f"{_OF_GLT}{_PLAIN}",
        "SamplingConfig": "BaseDistLoader.create_sampling_config(...)",
        **_each("DistContext DistRole get_context", f"{_OF_GLT}{_CONTEXT}"),
        "init_worker_group": f"{_OF_GLT}leave it out: loaders use torch.distributed",
        **_ROLES,
        "ConcurrentEventLoop": "worker_concurrency= of a loader: batches that a worker overlaps",
        **_each("init_rpc shutdown_rpc rpc_request rpc_request_async", _NO_RPC),
        # graph_store, by GiGL's and GLT's habit of one module
        **_each(
            "DistServer RemoteReceivingChannel StorageProcess async_request_server request_server "
            "init_compute_process shutdown_compute_process init_storage_process run_storage_server "
            "get_graph_store_info build_storage_dataset",
            _STORE,
        ),
        # PyG
        "DataLoader": f"{_NODES}; torch's and PyG's DataLoader are for datasets of many graphs",
        "NeighborLoader": _NODES,
        "NodeLoader": f"BaseDistLoader; or {_NODES}",
        "LinkNeighborLoader": _LINKS,
        "LinkLoader": f"BaseDistLoader; or {_LINKS}",
        "HGTLoader": f"{_NODES}; PPRSamplerOptions(max_ppr_nodes=...) bounds nodes of each type",
        "HGTSampler": "PPRSamplerOptions(max_ppr_nodes=...) bounds nodes of each type",
        "ShaDowKHopSampler": f'{_NODES}, with disjoint=True and subgraph_type="induced"',
        "ClusterData": f'{_PARTITION}; method="metis" makes clusters',
        **_each(
            "ClusterLoader GraphSAINTSampler GraphSAINTNodeSampler GraphSAINTEdgeSampler "
            "GraphSAINTRandomWalkSampler RandomNodeLoader",
            _SUBGRAPHS,
        ),
        **_each("NeighborSampler DistNeighborSampler", f"{_NODES}; {_SAMPLER}"),
        "BaseSampler": _SAMPLER,
        "EdgeSamplerInput": "give DistLinkNeighborLoader edge_label_index=",
        "ImbalancedSampler": "repeat or leave out seeds in input_nodes=",
        "DynamicBatchSampler": "pad= divides batches that are larger than a size",
        "PrefetchLoader": "loaders copy ahead themselves; DevicePrefetcher does so for others",
        "CachedLoader": "remote_cache= keeps rows of other machines",
        "ZipLoader": "torch_geometric.loader.ZipLoader takes the loaders here",
        "RandomLinkSplit": "split_links(...)",
        "Partitioner": _PARTITION,
        "LocalFeatureStore": f"DistDataset; feature_store= names a store of your own. {_BUILD}",
        "LocalGraphStore": _BUILD,
    },
    "gigl_loader.graph_store": {
        **_ROLES,
        **_each("DistNeighborLoader DistABLPLoader DistDataset", "it is in gigl_loader"),
    },
    # the modules of GiGL's
    "gigl_loader.base_sampler": _each("SampleLoopInputs BaseDistNeighborSampler", _SAMPLER),
    "gigl_loader.constants": _each(
        "DEFAULT_MASTER_INFERENCE_PORT DEFAULT_MASTER_SAMPLING_PORT "
        "DEFAULT_MASTER_DATA_BUILDING_PORT",
        "no port is fixed: loaders agree on theirs, and get_free_port() of utils finds one",
    ),
    "gigl_loader.dist_ppr_sampler": _each(
        "PPR_EDGE_INDEX_METADATA_KEY PPR_WEIGHT_METADATA_KEY PPRTensorOutput PPRCacheState "
        "PPRResult SampledEdgeResult DistPPRNeighborSampler",
        _PPR,
    ),
    "gigl_loader.distributed_neighborloader": {"flush": "flush= of print"},
    "gigl_loader.graph_store.compute": {"R": _TYPE_VARIABLE},
    "gigl_loader.graph_store.dist_server": {
        "SERVER_EXIT_STATUS_CHECK_INTERVAL": f"a server waits by itself: {_SERVE}",
        "FETCH_SLOW_LOG_SECS": "loader.stats() says what a loader waits for",
        "R": _TYPE_VARIABLE,
        **_each("ChannelState SamplingBackendState", _SERVERS_OWN),
    },
    "gigl_loader.graph_store.messages": {
        **_each("InitSamplingBackendRequest RegisterBackendRequest", _SERVERS_OWN),
        "FetchNodesRequest": "RemoteDistDataset.fetch_node_ids(...) takes its arguments",
        "FetchABLPInputRequest": "RemoteDistDataset.fetch_ablp_input(...) takes its arguments",
    },
    "gigl_loader.graph_store.sharding": _each(
        "ServerSlice compute_server_assignments",
        "RemoteDistDataset.fetch_node_ids(rank, world_size) assigns servers to ranks",
    ),
    "gigl_loader.graph_store.shared_dist_sampling_producer": _each(
        "EPOCH_DONE_EVENT SCHEDULER_TICK_SECS SCHEDULER_STATE_LOG_INTERVAL_SECS "
        "SCHEDULER_STATE_MAX_CHANNELS SCHEDULER_SLOW_SUBMIT_SECS SharedMpCommand RegisterInputCmd "
        "StartEpochCmd ActiveEpochState CommandPayload SharedDistSamplingBackend",
        _SERVERS_OWN,
    ),
    "gigl_loader.glt.channel": {
        **_each("ShmChannel MpChannel", _CHANNEL),
        "QueueTimeoutError": "PeerTimeoutError of gigl_loader",
        "SampleMessage": "a dict of tensors by graphlearn-torch's keys, which loaders take",
    },
    "gigl_loader.glt.data": {
        "DeviceGroup": 'leave it out: DistDataset.to("cuda") moves a dataset to its rank\'s GPU',
        "UnifiedTensor": 'DistDataset.to("cuda", features="host", cache=...) keeps rows so',
        "TableDataset": "partition_tables(...), then DistDataset.load(root, rank)",
        "sort_by_in_degree": "leave it out: a cache of DistDataset.to(...) knows what comes",
        "random_split": "split_links(...), or masks of the graph that from_pyg reads",
        **_each(
            "load_vertex_feature_from_vineyard load_edge_feature_from_vineyard vineyard_to_csr "
            "get_fid_from_gid get_frag_vertex_offset get_frag_vertex_num v6d_id_filter "
            "v6d_id_select VineyardPartitionBook VineyardGid2Lid",
            _PARTITION,
        ),
        **_each(
            "rebuild_table_dataset reduce_table_dataset rebuild_dataset reduce_dataset "
            "rebuild_feature reduce_feature rebuild_graph "
            "reduce_graph",
            "leave it out: pickle and torch.multiprocessing take a DistDataset",
        ),
    },
    "gigl_loader.glt.distributed": {
        **_each(
            "rpc_is_initialized get_rpc_master_addr get_rpc_master_port RpcDataPartitionRouter "
            "rpc_sync_data_partitions RpcCalleeBase rpc_register rpc_global_request_async "
            "rpc_global_request",
            _NO_RPC,
        ),
        **_each("all_gather global_all_gather", _RPC_GATHER),
        **_each("barrier global_barrier", "torch.distributed.barrier()"),
        "DistFeature": "DistDataset.get_features(ids) reads rows of nodes, of all partitions",
    },
    "gigl_loader.glt.utils": {
        "common": "its names are in gigl_loader.glt.utils",
        "get_available_device": "torch.device, or get_available_device(rank) of gigl_loader.utils",
        **_each("assign_device ensure_device", "torch.cuda.set_device(rank)"),
        "CastMixin": "a class of your own",
        "singleton": "functools.cache on a function that makes the object",
        **_each(
            "merge_dict count_dict merge_hetero_sampler_output format_hetero_sampler_output",
            "loaders collate messages themselves",
        ),
        **_each(
            "append_tensor_to_file load_and_concatenate_tensors",
            "torch.save(...) and torch.load(...)",
        ),
        **_each("save_ckpt load_ckpt", "torch.save(model.state_dict()); loaders have state_dict()"),
        **_each(
            "id2idx convert_to_tensor apply_to_all_tensor share_memory squeeze index_select "
            "tensor_equal_with_device ptr2ind coo_to_csr coo_to_csc default_id_select "
            "default_id_filter",
            _OF_TENSORS,
        ),
        **_each("glt_v6d_ext_module glt_ext_module", "nothing here is compiled at installation"),
    },
    "gigl_loader.sampler": {
        **_each("NODE_PACKED_FEATURES_METADATA_KEY EDGE_PACKED_FEATURES_METADATA_KEY", _QUANTIZED)
    },
    "gigl_loader.types.graph": {
        "NodeType": "a str, such as 'user'",
        "Relation": "a str, such as 'follows'",
        "EdgeType": "a tuple, such as ('user', 'follows', 'user')",
        **_each("FeatureQuantizationIndexTensors FeatureQuantizationMetadata", _QUANTIZED),
        "LoadedGraphTensors": f"PartitionOutput(...) for DistDataset.build; or {_PARTITION}",
    },
    "gigl_loader.utils": _each("write_readiness_signal wait_for_readiness_signal", _READY),
    "gigl_loader.utils.channel": _each(
        "SizedShmChannel MonitoredShmChannel",
        "BaseDistLoader.create_colocated_channel(...), and loader.stats() for its use",
    ),
    "gigl_loader.utils.device": {
        "get_device_from_process_group": "tensors on the CPU for a gloo group, and on the current "
        "GPU for NCCL's; on_all_ranks(...) and sum_over_ranks(...) take either"
    },
    "gigl_loader.utils.dist_sampler": _each(
        "SamplerInput SamplerRuntime create_dist_sampler", _SAMPLER
    ),
    "gigl_loader.utils.dist_typed_sampler": _each(
        "TypedPPRChannelKey TypedPPRChannelEdgeTypeGroups TypedPPRChannelTraversalMap "
        "TypedPPRChannelTraversalMaps parse_typed_channel_ratio_groups "
        "compute_typed_channel_target_counts build_edge_type_channel_group_edge_type_ids",
        "PPRSamplerOptions(typed_channel_ratios=...)",
    ),
    "gigl_loader.utils.neighborloader": {
        "patch_fanout_for_sampling": "BaseDistLoader.create_sampling_config(...) does that",
        "strip_non_ppr_edge_types": "leave it out: batches come so",
        "attach_ppr_outputs": _PPR,
    },
    "gigl_loader.utils.networking": _each(
        "write_readiness_signal wait_for_readiness_signal", _READY
    ),
    "gigl_loader.utils.partition_book": {
        "get_ids_on_rank": "DistDataset.node_ids has the ids of a partition",
        "get_total_ids": "DistDataset.num_nodes",
        "build_partition_book": _PARTITION,
    },
    "gigl_loader.utils.sampling_errors": _each(
        "SAMPLING_ERROR_KEY encode_sampling_error",
        "an error of a sampler comes out of the loop as SamplingError",
    ),
    "gigl_loader.utils.serialized_graph_metadata_translator": {
        "convert_pb_to_serialized_graph_metadata": "partition_tables(...) reads Parquet, CSV and "
        "Arrow tables"
    },
}
"""Advice by package and name."""


def advice_on(package: str, name: str) -> str | None:
    """Return what takes the place of a name of another library; None: nothing is known."""
    text = ADVICE.get(package, {}).get(name)
    return None if text is None else f"{package} has no {name!r}: {text}"


def refuse(module: str) -> NoReturn:
    """Refuse the import of a name, which the import system takes for a module.

    Args:
        module: The name that it looks for, such as ``"gigl_loader.DistPartitioner"``.

    Raises:
        ImportError: Always, with the advice.
    """
    package, _, name = module.rpartition(".")
    # under the name of another package, too: `gigl.distributed.graph_store`, see `compat.install`
    last = f"gigl_loader.{package.rpartition('.')[2]}"
    here = last if last in ("gigl_loader.graph_store", "gigl_loader.sampler") else "gigl_loader"
    text = advice_on(here, name)
    if text is None:  # a name that only another package of ours has advice on
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    raise ImportError(text, name=module)


def advise(module: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module of GiGL's.

    Args:
        module: Its name here, such as ``"gigl_loader.utils.channel"``.
    """

    def getattr_(name: str) -> NoReturn:
        # GiGL's modules have names of one another; and every name's advice holds wherever it is
        text = _LOGGER if name == "logger" else ADVICE["gigl_loader"].get(name)
        text = advice_on(module, name) or (text and f"{module} has no {name!r}: {text}")
        if text is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        # `from module import name` would replace the text of an AttributeError by its own
        raise ImportError(text, name=module)

    return getattr_
