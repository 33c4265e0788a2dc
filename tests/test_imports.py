"""The layout's import rules, read from the source."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "gigl_loader"
ORDER = (
    "runtime", "dataset", "sampler", "memory", "rowcache", "source", "workers",
    "wire", "server", "client", "collate", "device", "on_device", "in_process", "loader",
    "inference", "tables", "plan", "commands", "graph_store", "ray", "compat", "testing",
)  # fmt: skip
FILES = sorted(PACKAGE.rglob("*.py"))


def _path(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


DOWNWARD = {
    ("message.py", "dataset"): "messages are keyed by the schema's node and edge types",
    ("options.py", "dataset"): "fanouts are keyed by the schema's edge types",
    ("diagnose.py", "workers"): "a command: it stands above everything",
    ("diagnose.py", "on_device"): "the same",
}
"""Imports against the order that are wanted, each with its reason."""

FACES = {
    "runtime/transport": {
        # both ends of a connection: what they call and answer, and who may
        "": "Caller EndReason IncomingArray Listener Method Mode Peer Reply SILENCE_S Security "
        "address_towards codec free_port free_ports into_array is_loopback own_address "
        "refuse_loopback_name refuse_unspecified split_address sockets",
        "reply": "Into",
        # a message as bytes; a failure as a message
        "codec": "ARRAY_EXTENSION Array decode encode read_header",
        "failures": "Failure describe fresh_copy rebuild",
        # certificates and tokens for commands, and their names in an environment
        "certs": "make_folder token",
        "security": "INSECURE_VARIABLE TLS_DIR_VARIABLE TOKEN_VARIABLE",
        # a page of metrics; what stands in for a listener; a port that is asked for
        "pages": "Pages",
        "listener": "random_incarnation",
        "sockets": "is_free",
    },
    "runtime/memory": {
        # memory as arrays and as tensors
        "segments": "Array align array_in nbytes_of storage_dtype",
        "tensors": "Offered as_array bytes_of dtype_name dtype_named each_tensor empty_shared "
        "give_back_freed map_file mapping_of share_tensor tensor_in",
        # memory that processes of a machine share, and their lock
        "same_host": "OwnHostProof Mappings SameHostProof Offer Region read_offers",
        "mutex": "Mutex",
        # memory of the host that a GPU reads
        "pinned": "PinMemoryError PinnedRange pinned_tensors",
        "": "read_ahead same_host segments tensors",
    },
    "runtime/object_storage": {
        # a folder in object storage, its copy on this machine, and one that is written
        "object_folder": "ObjectFolder is_url",
        "folder_cache": "Cache CachedFolder hold",
        "fetch": "Fetch StoredFile",
        "command_options": "add_cache",
    },
    "dataset": {
        # a graph: whole, and as the view of a partition that samplers read
        "local": "DistDataset",
        "view": "A Adjacency Book Matrix Owner PartitionView ROW_KINDS Row Rows TimeOrder earlier "
        "keys_of owner_of",
        "placement": "Placement",
        "schema": "COMMUNITY DEFAULT_HOMOGENEOUS_EDGE_TYPE DEFAULT_HOMOGENEOUS_NODE_TYPE "
        "DatasetSchema EdgeDir EdgeType FeatureInfo FilePath NEIGHBOR_TIME NodeType SPLITS Split "
        "check_type_names edge_type_str glt_edge_type is_label_edge_type is_in_batches "
        "label_to_message_passing message_passing_to_negative_label "
        "message_passing_to_positive_label plain_edge_type reverse_edge_type row_type",
        # edges and rows of given ids, and who has which
        "adjacency": "EdgeBlock all_edges block_of edges_of",
        "lookup": "DistFeature Kind RowLookup RowsOf check_ids num_ids_of type_of_ids widened",
        "by_type": "Counts EdgeInfo NodeInfo",
        "split_ids": "names_of",
        "build": "owned_ids",
        # owners and communities by METIS, of a graph in memory
        "metis": "check_communities communities_by_metis community_bounds cut_by_metis "
        "dense_communities import_metis",
        "identity": "GAMMA GraphIdentity Share WHOLE check_enough check_held check_position "
        "content_digest holders_of mixed shares_of",
        # directories of partitions: for tables, which write them, and for commands
        "partition_graph": "partition_graph",
        "degrees": "compute_and_broadcast_degree_tensor",
        "directory": "FORMATS Format LOCK ORDERS RowOrder Target check_format check_order "
        "clear_killed complete_or_nothing lock_of only_writer",
        "mapped": "ArraySpec BLOCK_BYTES EDGE_ROWS LOOKUPS PARQUET Part ROOT_FILE block_digests "
        "damaged is_mapped_format rows_at",
        "mapped_writer": "PartFiles allow_files index_type new_file seal write_array write_npy "
        "write_numbers",
        "disk": "bytes_to_read count_partitions load_tensor",
        "fetched": "opened_root",
        "": "disk view_writer",
    },
    "wire": {
        # the server's methods, and how a call becomes messages
        "signatures": "CALLS DistServer PartitionSignatures",
        "calls": "Call FeatureInfos PartitionBook TensorMessage dtype_of",
        # the messages of loaders
        "requests": "Addresses BatchMessage ByServer EpochRequest FetchAnswer FetchRequest "
        "GiveBack NOBODY NodeIdsRequest Nothing ProducerRequest RowBook Runs compacted "
        "select_servers",
        "batch_shares": "OwnBatches share_of_batches",
        "payload": "pack_batch unpack_batch wire_bytes",
        # who takes part
        "info": "GraphStoreInfo info_of_servers",
        "membership": "Join MAX_JOBS MOST_RANKS News PATIENCE_S Role WaitReport Watch "
        "check_figures check_job_name check_max_jobs check_patience check_same hear "
        "stopped_text",
    },
    "rowcache": {
        # the cache of a machine, and its size
        "machine": "MachineRows RowsClaim RowsOffer memory_for name_of_rows shared_memory",
        "tables": "RowTables WINDOW by_owner",
        # one batch through it: drawn ahead, planned, filled
        "look_ahead": "AheadMemory AheadTasks DrawnAhead DrawnBatch LookAhead Waiting copy_drawn",
        "pipeline": "Filling NOT_PLANNED Pipeline READY_S",
        # the cache alone, for slots that lie elsewhere; its kernels, for the supervisor
        "cache": "RowCache",
    },
    "sampler": {
        # for loaders: which sampler, and what its batches may be
        "kinds": "SamplerKind sampled_fields",
        "anchors": "ANCHOR_KIND",
        "edges": "EDGE_KIND",
        "neighbor": "NEIGHBOR_KIND NeighborSampler SUBGRAPH_KIND",
        "ppr": "PPR_KIND ppr_around",
        "bounds": "BATCHES_HELD BatchBounds batch_bounds",
        # for sources: input and output; for those who carry requests and answer them: both forms
        "plan": "Draw DrawRequest Drawn Peers RowPeers RowsAnswer RowsRequest SampleRequest "
        "Sampler SamplingPlan SeedInput draw_version",
        "packing": "PackedInts PackedRuns",
        "reader": "LocalReader ReaderOfThread Scratch",
        # for caches, and rows that come after their batch
        "row_exchange": "RequestedRows LaterPeers LaterRows Part Split gather_rows part_of "
        "read_rows_apart rows_apart split_by_owner",
        # for the same draws on a device, bit for bit, and labels of the whole graph
        "nodes": "NodeLabels",
        "weighted_kernels": "LOGARITHM",
        # for processes that compile kernels before they are needed
        "kernel_loaders": "LOADERS",
    },
}
"""What other folders may import of a folder, by module. A new name there is a decision: the face
grows. It is not a dozen names: these folders are parts that several sources compose in their own
ways, and one name for several parts would only pass on."""

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
        "options.py",  # asks whether keywords can go to workers; reads nothing
        "sources/workers/pipe.py",
        "sources/workers/worker.py",
    },
    "obstore": {"runtime/object_storage/object_folder.py"},  # an extra
    "warp": {  # an extra: `kernel_choice.kernels_for` does without it
        "sampler/gpu/warp_kernels.py",
        "sampler/gpu/warp_programs.py",
    },
    "torch.distributed.rpc": {
        # loads it before GLT does, so that it does not meet the stand-ins
        "runtime/glt_classes/__init__.py",
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
    """Return the sub-package that ``dotted`` names, or None for a module on top."""
    parts = dotted.split(".")
    return parts[1] if parts[0] == "gigl_loader" and parts[1:] and parts[1] in ORDER else None


def _against_the_order(path: str, source: str) -> list[str]:
    own = path.split("/")[0] if "/" in path else None
    rank = ORDER.index(own) if own else 0  # a loose module imports the lowest room
    return [
        f"{path} imports {name}"
        for name in _imports(source)
        if (folder := _folder(name))
        and ORDER.index(folder) > rank
        and (path, folder) not in DOWNWARD
    ]


def test_every_folder_has_its_position() -> None:
    assert {f.relative_to(PACKAGE).parts[0] for f in FILES if f.parent != PACKAGE} <= set(ORDER)


@pytest.mark.parametrize("file", FILES, ids=_path)
def test_imports_point_up(file: Path) -> None:
    if _path(file) != "__init__.py":  # names the whole package, and loads none of it
        assert _against_the_order(_path(file), file.read_text()) == []


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
    assert _against_the_order("options.py", source)
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


@pytest.mark.parametrize("file", sorted((PACKAGE / "device").glob("*.py")), ids=_path)
def test_device_needs_torch_and_pyg_only(file: Path) -> None:
    roots = {name.partition(".")[0] for name in _imports(file.read_text())}
    assert roots - set(sys.stdlib_module_names) <= {"torch", "torch_geometric", "gigl_loader"}


@pytest.mark.parametrize("folder", [one for one in ORDER if (PACKAGE / one).is_dir()])
def test_sub_packages_hold_a_docstring_only(folder: str) -> None:
    # these name what they offer
    if folder in ("compat", "graph_store", "ray", "sampler", "testing"):
        return
    body = ast.parse((PACKAGE / folder / "__init__.py").read_text()).body
    assert len(body) == 1
    assert isinstance(body[0], ast.Expr)


def test_what_a_thread_keeps_is_typed() -> None:
    """A bare ``threading.local()`` has any attribute: one was read that nobody wrote."""
    bare = [_path(file) for file in FILES if "threading.local()" in file.read_text()]
    assert bare == [], "give a subclass its attributes"
