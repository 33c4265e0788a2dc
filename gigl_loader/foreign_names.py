"""Names that people import from GiGL, graphlearn-torch and PyG, and what takes their place here.

The data of the advice that `gigl_loader._lazy` gives. A name that exists here is not in it.
"""

_PARTITION = (
    "partition_graph(data, n, root) or partition_tables(...) writes partitions, and "
    "DistDataset.load(root, rank) reads one"
)
_BUILD = "DistDataset.from_pyg(data), DistDataset.load(root, rank), or build(partition_output=...)"
_STORE = "it is in gigl_loader.graph_store"
_JOIN = "gigl_loader.graph_store.init_compute_process(...) joins a graph store, and "
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
_PRODUCER = "DistSamplingProducer, which loaders make themselves"
_CONTEXT = "BaseDistLoader.resolve_runtime() returns ranks, sizes and addresses"
_SUBGRAPHS = (
    "DistSubGraphLoader(dataset, seeds, num_neighbors), or CustomSamplerOptions for walks, as in "
    'the example of "Sampling"'
)

ADVICE: dict[str, dict[str, str]] = {
    "gigl_loader": {
        # GiGL
        "build_dataset": _BUILD,
        "build_dataset_from_task_config_uri": f"{_BUILD}; there are no task configurations",
        "DatasetFactory": _BUILD,
        "DistPartitioner": _PARTITION,
        "DistRangePartitioner": f'{_PARTITION}; method="contiguous" gives ranges',
        "DistLinkPredictionDataset": "DistDataset, which holds labels, too",
        "DistLinkPredictionDataPartitioner": _PARTITION,
        "get_graph_store_info": "GraphStoreInfo.from_env()",
        "SamplingEngine": "a loader takes a DistDataset or a RemoteDistDataset, which decides it",
        "ColocatedSamplingEngine": "a loader of a DistDataset",
        "GraphStoreSamplingEngine": "a loader of a RemoteDistDataset",
        "build_storage_dataset": f"DistDataset.load(root, storage_rank), or {_SERVE}",
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
        "DistMpSamplingProducer": _PRODUCER,
        "DistCollocatedSamplingProducer": "num_workers=0 samples in the training process",
        "MpDistSamplingWorkerOptions": _PLAIN,
        "CollocatedDistSamplingWorkerOptions": "num_workers=0 samples in the training process",
        "RemoteDistSamplingWorkerOptions": _PLAIN,
        "SamplingConfig": "BaseDistLoader.create_sampling_config(...)",
        "DistContext": _CONTEXT,
        "DistRole": _CONTEXT,
        "get_context": _CONTEXT,
        "init_worker_group": "leave it out: loaders use torch.distributed",
        "init_server": _SERVE,
        "wait_and_shutdown_server": f"a server waits by itself: {_SERVE}",
        "get_server": _SERVE,
        "init_client": f"{_JOIN}shutdown_compute_process() leaves it",
        "shutdown_client": f"{_JOIN}shutdown_compute_process() leaves it",
        "ConcurrentEventLoop": "worker_concurrency= of a loader: batches that a worker overlaps",
        "init_rpc": _NO_RPC,
        "shutdown_rpc": _NO_RPC,
        "rpc_request": _NO_RPC,
        "rpc_request_async": _NO_RPC,
        # graph_store, by GiGL's and GLT's habit of one module
        "DistServer": _STORE,
        "RemoteReceivingChannel": _STORE,
        "StorageProcess": _STORE,
        "async_request_server": _STORE,
        "request_server": _STORE,
        "init_compute_process": _STORE,
        "shutdown_compute_process": _STORE,
        "init_storage_process": _STORE,
        "run_storage_server": _STORE,
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
        "ClusterLoader": _SUBGRAPHS,
        "GraphSAINTSampler": _SUBGRAPHS,
        "GraphSAINTNodeSampler": _SUBGRAPHS,
        "GraphSAINTEdgeSampler": _SUBGRAPHS,
        "GraphSAINTRandomWalkSampler": _SUBGRAPHS,
        "RandomNodeLoader": _SUBGRAPHS,
        "NeighborSampler": f"{_NODES}; {_SAMPLER}",
        "DistNeighborSampler": f"{_NODES}; {_SAMPLER}",
        "BaseSampler": _SAMPLER,
        "NodeSamplerInput": "give the loader input_nodes=",
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
        "init_server": _SERVE,
        "wait_and_shutdown_server": f"a server waits by itself: {_SERVE}",
        "get_server": _SERVE,
        "init_client": f"{_JOIN}shutdown_compute_process() leaves it",
        "shutdown_client": f"{_JOIN}shutdown_compute_process() leaves it",
        "get_graph_store_info": "gigl_loader.GraphStoreInfo.from_env()",
        "build_storage_dataset": f"DistDataset.load(root, storage_rank), or {_SERVE}",
        "DistNeighborLoader": "it is in gigl_loader",
        "DistABLPLoader": "it is in gigl_loader",
        "DistDataset": "it is in gigl_loader",
    },
}
"""Advice by package and name."""


def advice_on(package: str, name: str) -> str | None:
    """Return what takes the place of a name of another library; None: nothing is known."""
    text = ADVICE.get(package, {}).get(name)
    return None if text is None else f"{package} has no {name!r}: {text}"
