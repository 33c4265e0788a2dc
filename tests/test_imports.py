"""The layout's import rules, read from the source."""

import ast
import contextlib
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gigl_loader"
ORDER = (
    "runtime",
    "dataset",
    "partitioning",
    "batch",
    "sampler",
    "sources",
    "graph_store",
    "loader",
    "inference",
    "commands",
    "compat",
    "testing",
)
"""The rooms in the order of the data: a room imports those before it alone."""
AT_THE_TOP = {*ORDER, "__init__.py", "__init__.pyi", "__main__.py", "errors.py", "py.typed"}
FILES = sorted(PACKAGE.rglob("*.py"))


def _path(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


FACES = {
    "runtime/transport": {
        # both ends of a connection: what they call and answer, and who may
        "": "Caller EndReason IncomingArray Listener Method Mode Peer Reply SILENCE_S Security "
        "address_towards codec free_port free_ports into_array is_loopback own_address "
        "refuse_loopback_name refuse_unspecified sockets split_address",
        # certificates and tokens for commands, and their names in an environment
        "certs": "make_folder token",
        # a message as bytes; a failure as a message
        "codec": "ARRAY_EXTENSION Array decode encode read_header",
        "failures": "Failure describe fresh_copy one_line rebuild short_copy",
        # what stands in for a listener; a page of metrics; a port that is asked for
        "listener": "random_incarnation",
        "pages": "Pages",
        "reply": "Into",
        "security": "INSECURE_VARIABLE TLS_DIR_VARIABLE TOKEN_VARIABLE",
        "sockets": "is_free",
    },
    "runtime/memory": {
        "": "read_ahead same_host segments tensors",
        # memory that processes of a machine share, and their lock
        "mutex": "Mutex",
        # memory of the host that a GPU reads
        "pinned": "PinMemoryError PinnedRange pinned_tensors",
        "same_host": "Mappings Offer OwnHostProof Region SameHostProof read_offers",
        # memory as arrays and as tensors
        "segments": "Array Layout align array_in nbytes_of storage_dtype",
        "tensors": "Offered as_array bytes_of can_be_offered dtype_name dtype_named each_tensor "
        "empty_shared give_back_freed map_file mapping_of share_tensor tensor_in tensors_in",
    },
    "runtime/object_storage": {
        "command_options": "add_cache",
        # a folder in object storage, its copy on this machine, and one that is written
        "fetch": "Fetch StoredFile",
        "file_systems": "file_system_of",
        "folder_cache": "Cache CachedFolder distrust hold is_of_a_cache",
        "object_folder": "ObjectFolder checked_url is_url shown_url",
    },
    "runtime/ranks": {
        "collectives": "COULD_NOT_BUILD RankExchange RowsFromRanks backends_of broadcast_value "
        "check_same_options decide_with_ranks end_group gather_from_ranks order_by_rank "
        "report_failure_to_ranks suspect_ranks",
        "for_scripts": "on_all_ranks shared_folder sum_over_ranks",
        "gloo_interface": "VARIABLE interface_needed interface_towards",
    },
    "dataset": {
        "column_stats": "DATABASE_FILE col_stats_of",
        "cache_options": "CacheOptions",
        "degrees": "compute_and_broadcast_degree_tensor",
        "dist_dataset": "DistDataset",
        "format": "glt_files view_writer",
        # directories of partitions: who writes them, what is in them
        "format.directory": "FORMATS Format LOCK ORDERS RowOrder Target check_format check_order "
        "check_root clear_killed complete_or_nothing lock_of only_writer",
        "format.fetched_root": "opened_root",
        "format.glt_files": "bytes_to_read count_partitions load_tensor read_edges read_partition",
        "format.mapped": "ArraySpec BLOCK_BYTES EDGE_ROWS LOOKUPS PARQUET Part ROOT_FILE "
        "TABLE_COLUMN block_digests damaged is_mapped_format rows_at",
        "format.mapped_writer": "PartFiles allow_files index_type new_file seal write_array "
        "write_npy write_numbers",
        "format.view_writer": "save_tensor write_views",
        # PyG's graphs, for those who cut them
        "from_pyg.pyg_graph": "CheckedGraph Cutter Supervision keep_neighbor_times read_pyg",
        "from_pyg.split_ids": "names_of",
        "identity": "GAMMA GraphIdentity Share WHOLE check_enough check_held check_position "
        "content_digest holders_of mixed shares_of",
        "lookup": "DistFeature FeatureDtype Kind RowLookup RowsOf check_feature_dtype check_ids "
        "num_ids_of quantise type_of_ids widened",
        "one_or_by_type": "Counts EdgeInfo Graph NodeInfo PyGGraph",
        # the view of a partition that samplers read
        "partition.adjacency": "EdgeBlock all_edges block_of compress edges_at edges_of "
        "kept_edges label_adjacency spans_of",
        "partition.build": "contiguous_book make_book owned_ids",
        "partition.checks": "check_edge_dir check_edge_type check_partitions",
        "partition.doubts": "IGNORED_LABEL check_enough_nodes empty_partitions low_labels "
        "not_numbers warn_of",
        "partition.frames": "FRAME FrameColumns FrameGroup Frames MOST_VALUES NO_TIME PADDED "
        "STORED attributes_of check_installed frame_attribute is_frame is_of_frame "
        "lengths_attribute places_in_row stamp_parts to_frame",
        "partition.partition_output": "FeaturePartitionData GraphPartitionData PartitionOutput "
        "by_type",
        "partition.partition_view": "A Adjacency Book Matrix Owner PartitionView ROW_KINDS Row "
        "Rows Splits TimeOrder WithSplits earlier keys_of owner_of",
        "placement": "Placement",
        "schema": "COMMUNITY DEFAULT_HOMOGENEOUS_EDGE_TYPE DEFAULT_HOMOGENEOUS_NODE_TYPE "
        "DatasetSchema EdgeDir EdgeType FeatureInfo FilePath LABEL_TYPES NEGATIVE NEIGHBOR_TIME "
        "NodeType POSITIVE PPR SPLITS Split check_file_names check_type_names edge_type_str "
        "expanded_end glt_edge_type is_in_batches is_label_edge_type label_to_message_passing "
        "message_passing_to_negative_label message_passing_to_positive_label plain_edge_type "
        "reverse_edge_type row_type",
    },
    "partitioning": {
        # for tasks
        "databases.database_tables": "digest_of_source",
        "databases.encode": "key_sql",
        "databases.source": "Database MANIFEST NUMBERS family_of named one_row open_database "
        "seconds_of seconds_sql upto_sql",
        "tables.engine_sql": "quoted quoted_name",
        # for commands
        "databases.partition_database": "partition_database",
        "other_libraries.foreign_graphs": "OF_EDGES OF_NODES count_foreign read_dgl read_pyg",
        "other_libraries.gigl_graphs": "Message RECORDS metadata_of read_gigl read_records",
        "other_libraries.gigl_shares": "exchange_shares",
        "partition_graph": "partition_graph",
        "partition_tables": "ENGINES partition_tables",
        "tables.spec": "EdgeTable FEATURE_DTYPES METHODS Method NodeTable SOURCES",
    },
    "batch": {
        # from a message to a batch, and its way to the device
        "collate": "Batch TRIPLET_ATTRIBUTES add_edge_labels add_labels batch_types by_anchor "
        "frames_of_batches to_data to_hetero_data transform_outputs with_widened_features",
        "device.copy_stream": "capture_stream full_device",
        "device.device_memory": "DeviceMemory LentTensors",
        "device.prefetch": "CopyAhead CopyEngine DevicePrefetcher NOT_READY NotReady",
        "edge_ids": "answer_for_edge_ids",
        "glt_message": "GLTMessage GLTNames NEGATIVE_LABELS POSITIVE_LABELS "
        "extract_edge_type_metadata own_message with_ppr_outputs",
        # the memory of messages: slots of workers, leases of who reads them
        "leases": "BufferPool MessageMemory Packed ServerMemory ShmChannel own_messages "
        "payload_bytes",
        # the fields
        "message": "AT_ONCE_EPOCH AT_ONCE_STREAM Attempt Axis BATCH BatchCounts BatchTicket EDGE "
        "EDGES_PER_HOP EDGE_FEATURES EDGE_INDEX EDGE_ROWS Field HOP INPUT_ID META NODE "
        "NODES_PER_HOP NODE_FEATURES NODE_ROWS ROWS ROWS_OF Received SEED_TIME SampleMessage "
        "SeedColumns SeedEdges TOKENS TREE columns_of declared heterogeneous_field "
        "is_heterogeneous is_identity key keys_of_type label_column label_keys scales_key "
        "spec_of stays_on_host",
        "padding": "LEAST_DEAD PAD_ATTRIBUTES PadShape padded",
        "slots": "SlotWriter Written layout_of write_fields",
        "splitting": "SeedLayout split_to_fit",
        "tokens": "tokens_of",
    },
    "sampler": {
        # for loaders: which sampler, and what its batches may be
        "anchors": "ANCHOR_KIND",
        "batch_bounds": "BATCHES_HELD BatchBounds batch_bounds",
        "edges": "EDGE_KIND",
        # the same draws on a device, bit for bit
        "gpu.device_graph": "DeviceGraph HopRequest LocalDeviceGraph drawn_from edge_ids_at "
        "max_degree read_rows rows_of",
        "gpu.device_kernels": "HopEdges TorchKernels",
        "gpu.device_sampler": "CutBatch DeviceSampler Launched PlacedRoots check_plan "
        "require_neighbor_sampler",
        "gpu.kernel_choice": "kernels_for reason_against_warp",
        "gpu.torch_numbers": "signed",
        "kernels.kernel_loaders": "LOADERS",
        "labeled_anchors": "ABLPNodeSamplerInput NEGATIVE_LABEL_METADATA_KEY "
        "POSITIVE_LABEL_METADATA_KEY check_labels",
        "neighbor": "NEIGHBOR_KIND SUBGRAPH_KIND",
        "nodes": "NodeLabels",
        # options, which loaders and servers build
        "options": "CustomSamplerOptions DEFAULT_GROUPS_PER_BATCH DEFAULT_MAX_RESTARTS "
        "DEFAULT_RECONNECT_S DEFAULT_TIMEOUT_S EvenRanks Exchange ExpansionKeywords "
        "ExpansionOptions FeatureStoreOptions GROUPS KHopNeighborSamplerOptions PPRSamplerOptions "
        "SamplerOptions Shard Shuffle SourceOptions TokenOptions check_reconnect check_seed "
        "may_be_one_machine options_of_batches reads_same_memory",
        # for sources: input and output; for those who carry requests, both forms
        "plan": "DRAWN_BYTES DrawRequest Drawn Peers RowsAnswer RowsRequest SampleRequest Sampler "
        "SamplingPlan SeedInput draw_version",
        "ppr.ppr_sampler": "PPR_KIND ppr_around",
        # rows of other machines: the machine's memory, one batch through it
        "row_cache.cache": "RowCache",
        "row_cache.look_ahead": "AheadMemory AheadTasks DrawnAhead DrawnBatch LookAhead Waiting "
        "copy_drawn",
        "row_cache.machine_cache": "MachineRows RowsClaim RowsOffer memory_for name_of_rows "
        "shared_memory",
        "row_cache.pipeline": "Filling NOT_PLANNED Pipeline READY_S",
        "row_cache.tables": "RowTables WINDOW by_owner",
        # rows and neighbours by their owners
        "rows.packing": "PackedInts PackedRuns",
        "rows.reader": "LocalReader ReaderOfThread Scratch",
        "rows.row_exchange": "LaterPeers LaterRows Part Split gather_rows read_rows_apart "
        "rows_apart split_by_owner",
        "sampler_kinds": "SamplerKind sampled_fields",
    },
    "sources": {
        # the seam, and its input
        "batch_source": "BatchSource LINGER_S",
        "held_seeds": "HeldPart HeldSeeds RemoteNodePathSamplerInput RemoteNodeSplitSamplerInput "
        "RemoteSamplerInput joined told_parts",
        # the sources, and what they share with servers
        "in_process.device_source": "DeviceSource PartitionedSource",
        "in_process.in_process_source": "InProcessSource",
        "other_producer": "ProducerSource SamplesForLoader is_producer raise_sampling_error",
        "remote_interface": "ABLPInputNodes FETCHED_AS RemoteDataset server_worker_options",
        "sampled_input": "OWN_KINDS check_adaptive check_columns check_draw check_seed_times "
        "chosen_sampler num_batches seed_or_drawn",
        "sampling_checks": "check_sampling check_seeds check_workers checked_fanout",
        "seed_checks": "SHARDS SeedSummary check_each_once check_same_seeds",
        "staggered_start": "LeaderTurns WorkerTurns",
        "workers.job_turns": "JobTurns",
        "workers.producer": "DistSamplingProducer",
        "workers.rendezvous": "Rendezvous",
        "workers.schedule": "BatchStream",
    },
    "graph_store": {
        # public names
        "": "DistServer RemoteReceivingChannel async_request_server init_compute_process "
        "request_server run_storage_server shutdown_compute_process",
        "client": "compute_process",
        # a loader beside a store
        "client.compute_process": "JOB_VARIABLE init_compute_process join_cluster "
        "shutdown_compute_process",
        "client.remote_dist_dataset": "RemoteDistDataset",
        "client.remote_source": "RemoteSource",
        "ray": "GraphStore start_graph_store",
        # graphlearn-torch's server mode, and Ray
        "server.service": "StorageService",
        "server.storage_process": "StorageProcess init_storage_process",
        "status": "add_security ask host_and_port security_of",
        "wire.graph_store_info": "GraphStoreInfo info_of_servers",
        "wire.membership": "check_job_name",
        "wire.signatures": "DistServer",
    },
    "loader": {
        "base": "BaseDistLoader",
        "deployment.job_ranks": "DEFAULT_NUM_CPU_THREADS get_process_group_name "
        "init_neighbor_loader_worker resolve_runtime",
        "deployment.process_role": "open_loaders",
        "options.glt_config": "NumNeighbors",
    },
    "inference": {},
    "commands": {"cli": "main", "diagnose": "main"},
}
"""What other folders may import of a folder, by module. A new name there is a decision: the face
grows. Of `dataset`, `batch` and `sampler` it is not a dozen names: they are parts that several
sources compose in their own ways, and one name for several parts would only pass on. The loose
modules of `runtime` are names that everybody may use."""

ONLY_IMPORTERS = {
    "graphlearn_torch": {"runtime/glt_classes/__init__.py"},
    "socket": {
        *(_path(file) for file in (PACKAGE / "runtime/transport").glob("*.py")),
        # a Unix pair that passes descriptors; multiprocessing has none whole
        "sources/workers/pipe.py",
    },
    "pickle": {  # none of them reads what came over a network
        "commands/saved_graph.py",  # names an error of torch.load; reads nothing
        # directories in GLT's format, by a reader that knows tensors alone
        "dataset/format/glt_files.py",
        "dataset/format/view_writer.py",  # the same, written
        # names an error of torch.load, which reads with weights_only
        "loader/epochs/checkpoints.py",
        "runtime/memory/segments.py",  # between a process and the workers that it started
        "runtime/memory/tensors.py",
        "sampler/options.py",  # asks whether keywords can go to workers; reads nothing
        "sources/workers/pipe.py",
        "sources/workers/worker.py",
    },
    "obstore": {  # an extra
        "runtime/object_storage/object_folder.py",
        "runtime/object_storage/stored_files.py",
    },
    "warp": {  # an extra: `kernel_choice.kernels_for` does without it
        "sampler/gpu/warp_kernels.py",
        "sampler/gpu/warp_programs.py",
    },
    "torch.distributed.rpc": {
        # loads it before GLT does, so that it does not meet the stand-ins
        "runtime/glt_classes/__init__.py"
    },
}


@cache  # all files are asked for by several tests, and to parse them takes a second
def _imports(source: str) -> frozenset[str]:
    """Return the dotted name of every module or member that ``source`` imports, anywhere in it."""
    return frozenset(_each_import(source))


def _each_import(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level:  # `compat/paths/utils`, which has two names
                continue
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func
            if getattr(called, "id", called) == "import_module":
                assert isinstance(node.args[0].value, str)
                yield node.args[0].value


def _folder(dotted: str) -> str | None:
    """Return the room that ``dotted`` names, or None for a module on top."""
    parts = dotted.split(".")
    return parts[1] if parts[0] == "gigl_loader" and parts[1:] and parts[1] in ORDER else None


def _against_the_order(path: str, source: str) -> list[str]:
    rank = ORDER.index(path.split("/")[0]) if "/" in path else -1
    return [
        f"{path} imports {name}"
        for name in _imports(source)
        if (folder := _folder(name)) and ORDER.index(folder) > rank
    ]


def test_the_top_is_the_twelve_rooms() -> None:
    assert {path.name for path in PACKAGE.iterdir()} - {"__pycache__"} == AT_THE_TOP


@pytest.mark.parametrize("file", FILES, ids=_path)
def test_imports_point_down(file: Path) -> None:
    # these name the whole package, and load what is asked for
    if _path(file) not in ("__init__.py", "__main__.py"):
        assert _against_the_order(_path(file), file.read_text()) == []


def _arrows(folder: Path) -> dict[str, set[str]]:
    """Return which entries of a folder import which, by name."""
    prefix = ".".join(("gigl_loader", *folder.relative_to(PACKAGE).parts))
    entries = {path.stem for path in folder.iterdir()} - {"__init__", "__main__", "__pycache__"}
    found: dict[str, set[str]] = {}
    for file in folder.rglob("*.py"):
        own = file.relative_to(folder).parts[0].removesuffix(".py")
        for name in _imports(file.read_text()) if own in entries else ():
            other = name.removeprefix(f"{prefix}.").split(".")[0]
            if name.startswith(f"{prefix}.") and other in entries - {own}:
                found.setdefault(own, set()).add(other)
    return found


@pytest.mark.parametrize(
    "folder", [PACKAGE, *sorted({file.parent for file in FILES} - {PACKAGE})], ids=_path
)
def test_nothing_imports_in_a_circle(folder: Path) -> None:
    with contextlib.suppress(CycleError):
        TopologicalSorter(_arrows(folder)).prepare()
        return
    pytest.fail(str(_arrows(folder)))


def test_servers_and_clients_do_not_know_each_other() -> None:
    arrows = _arrows(PACKAGE / "graph_store")
    assert "client" not in arrows["server"]
    assert "server" not in arrows["client"]


@pytest.mark.parametrize(
    "source",
    [
        "from gigl_loader.loader.base import BaseDistLoader",
        "def f():\n    import gigl_loader.loader.base",
        "from gigl_loader import loader",
        "import importlib\nimportlib.import_module('gigl_loader.loader')",
        "from importlib import import_module\nimport_module('gigl_loader.loader')",
    ],
)
def test_a_planted_violation_is_found(source: str) -> None:
    assert _against_the_order("sampler/neighbor.py", source)
    assert _against_the_order("errors.py", source)
    assert not _against_the_order("testing/graphs.py", source)


def _imports_of_others(folder: str) -> set[str]:
    """Return what other folders import of ``folder``, by the path inside it."""
    start = f"gigl_loader.{folder.replace('/', '.')}."
    return {
        name.removeprefix(start)
        for file in FILES
        if not _path(file).startswith(f"{folder}/")
        for name in _imports(file.read_text())
        if name.startswith(start)
    }


@pytest.mark.parametrize("folder", FACES)
def test_others_import_the_face_of_a_folder_alone(folder: str) -> None:
    face = {
        f"{module}.{name}".lstrip(".")
        for module, names in FACES[folder].items()
        for name in names.split()
    }
    imported = _imports_of_others(folder)
    assert imported - face == set(), "inside the folder, or a name to add to its face"
    assert face - imported == set(), "nobody needs it: take it off the face"


@pytest.mark.parametrize("module", ONLY_IMPORTERS)
def test_only_these_files_import(module: str) -> None:
    importers = {
        _path(file)
        for file in FILES
        if any(f"{name}.".startswith(f"{module}.") for name in _imports(file.read_text()))
    }
    assert importers <= ONLY_IMPORTERS[module]


@pytest.mark.parametrize("file", sorted((PACKAGE / "batch/device").glob("*.py")), ids=_path)
def test_device_needs_torch_and_pyg_only(file: Path) -> None:
    roots = {name.partition(".")[0] for name in _imports(file.read_text())}
    assert roots - set(sys.stdlib_module_names) <= {"torch", "torch_geometric", "gigl_loader"}


@pytest.mark.parametrize("folder", [one for one in ORDER if (PACKAGE / one).is_dir()])
def test_sub_packages_hold_a_docstring_only(folder: str) -> None:
    # these name what they offer
    if folder in ("compat", "graph_store", "sampler", "testing"):
        return
    body = ast.parse((PACKAGE / folder / "__init__.py").read_text()).body
    assert len(body) == 1
    assert isinstance(body[0], ast.Expr)


def test_what_a_thread_keeps_is_typed() -> None:
    """A bare ``threading.local()`` has any attribute: one was read that nobody wrote."""
    bare = [_path(file) for file in FILES if "threading.local()" in file.read_text()]
    assert bare == [], "give a subclass its attributes"


def test_what_tests_share_has_one_path() -> None:
    """By two paths a helper would be two modules; by a bare name, the first of several files."""
    config = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())
    assert config["tool"]["pytest"]["ini_options"]["pythonpath"] == ["."]
    files = sorted((PACKAGE.parent / "tests").rglob("*.py"))
    # scripts of others find these by a path of their own
    files = [file for file in files if file.parent.name != "gigl_stand_ins"]
    shared = {file.stem for file in files if not file.stem.startswith(("test_", "__", "conftest"))}
    bare = {
        file.name: found
        for file in files
        if (found := shared & {name.partition(".")[0] for name in _imports(file.read_text())})
    }
    assert bare == {}, "import it as tests.<folder>.<module>"
