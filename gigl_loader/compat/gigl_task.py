"""Datasets of GiGL's task configurations: the partition of this machine, with GiGL's splits.

Source:
    GiGL at fee4ba50, ``gigl/distributed/dataset_factory.py``,
    ``gigl/distributed/graph_store/storage_utils.py`` and ``gigl/utils/data_splitters.py``.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from gigl_loader import DistDataset, DistributedContext
from gigl_loader.dataset.gigl_parts import split_by, splits_of
from gigl_loader.dataset.glt_attributes import set_splits
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    EdgeDir,
    EdgeType,
    FilePath,
    NodeType,
    message_passing_to_positive_label,
)
from gigl_loader.errors import ConfigError
from gigl_loader.partitioning.other_libraries.gigl_graphs import RECORDS, Message, read_gigl
from gigl_loader.partitioning.partition_tables import partition_tables
from gigl_loader.runtime.object_storage.object_folder import is_url

__all__ = ["build_dataset_from_task_config_uri", "build_storage_dataset"]

_OneSplit = tuple[Tensor, Tensor, Tensor]
_ARGUMENTS = {
    "sample_edge_direction",
    "should_use_range_partitioning",
    "should_load_tensors_in_parallel",
    "max_labels_per_anchor_node",
    "num_val",
    "num_test",
}
"""Arguments of a task that decide the dataset; scripts read others themselves."""


def build_dataset_from_task_config_uri(
    task_config_uri: FilePath,
    distributed_context: DistributedContext | None = None,
    is_inference: bool = True,
    _tfrecord_uri_pattern: str = RECORDS,
) -> DistDataset:
    """Return this machine's partition of the graph of a GiGL task, with its splits.

    ::

        dataset = build_dataset_from_task_config_uri("task.yaml", is_inference=False)

    Call it once on each machine; with a process group its ranks are the machines. Each machine
    reads all records and keeps its partition: for a graph that is large for that, run
    ``gigl-loader partition --from gigl`` once, which writes the same partitions, and
    `DistDataset.load` one.

    Args:
        task_config_uri: The task's YAML file: a path, ``gs://`` or ``s3://``.
        distributed_context: Deprecated: this machine's rank and their number. None: of the process
            group, or of ``RANK`` and ``WORLD_SIZE``, or one machine.
        is_inference: Read ``inferencerArgs``, and make no splits. False: ``trainerArgs``, and split
            as GiGL does: nodes, or the anchors of labels, by a hash of their ids.
        _tfrecord_uri_pattern: A regular expression that names of files with records match.

    Raises:
        ConfigError: A file is missing or malformed, or the task asks for something that does not
            exist here; the message names the key.
    """
    task = Message.read(str(task_config_uri))
    arguments = _arguments(task, "inferencer" if is_inference else "trainer")
    edge_dir = arguments.get("sample_edge_direction", "in")
    most = arguments.get("max_labels_per_anchor_node")
    splitter = None if is_inference else _splitter_of(task, arguments)
    dataset = _build(
        task_config_uri, edge_dir, _tfrecord_uri_pattern, splitter, _place(distributed_context)
    )
    dataset.max_labels_per_anchor_node = None if most is None else int(most)
    return dataset


def build_storage_dataset(
    task_config_uri: FilePath,
    sample_edge_direction: EdgeDir | None = None,
    tf_record_uri_pattern: str | None = None,
    splitter: Callable[..., Any] | None = None,
    should_load_tensors_in_parallel: bool = True,
    ssl_positive_label_percentage: float | None = None,
    max_labels_per_anchor_node: int | None = None,
) -> DistDataset:
    """Return the partition of this storage server, of a GiGL task or a directory of partitions.

    Args:
        task_config_uri: A task's YAML file, or a directory of partitions; or its URL.
        sample_edge_direction: ``edge_dir`` of the dataset; None: the directory's, ``"in"`` of a
            task.
        tf_record_uri_pattern: Of a task: a regular expression that names of files match; None:
            GiGL's.
        splitter: Of a task. Called with ``node_ids=``, or if it has a true
            ``should_convert_labels_to_edges`` with ``edge_index=``, the label edges of this
            partition by type; returns ids for training, validation and testing, or these by node
            type.
        should_load_tensors_in_parallel: Not looked at: records are read one file at a time.
        ssl_positive_label_percentage: None: drawn labels do not exist here.
        max_labels_per_anchor_node: See the attribute of the dataset.

    Raises:
        ConfigError: As `build_dataset_from_task_config_uri`.
    """
    if not str(task_config_uri).endswith((".yaml", ".yml")):
        given = {
            "tf_record_uri_pattern": tf_record_uri_pattern,
            "splitter": splitter,
            "ssl_positive_label_percentage": ssl_positive_label_percentage,
        }
        dataset = _load(task_config_uri, sample_edge_direction, given)
        dataset.max_labels_per_anchor_node = max_labels_per_anchor_node
        return dataset
    _check_no_ssl(ssl_positive_label_percentage, "ssl_positive_label_percentage")
    how = sample_edge_direction or "in"
    dataset = _build(task_config_uri, how, tf_record_uri_pattern or RECORDS, splitter, _place(None))
    dataset.max_labels_per_anchor_node = max_labels_per_anchor_node
    return dataset


_INSTEAD = "partition_tables(...) or partition_graph(data, n, root)"


def _load(root: FilePath, edge_dir: EdgeDir | None, of_tasks: dict[str, Any]) -> DistDataset:
    """Return this rank's partition of a directory."""
    if named := [name for name, value in of_tasks.items() if value is not None]:
        raise ConfigError(
            f"build_storage_dataset has no use for {named} with a directory of partitions: "
            f"{_INSTEAD} wrote its splits and labels"
        )
    if not (is_url(root) or Path(root).is_dir()):
        raise ConfigError(
            f"task_config_uri={str(root)!r} is no task's YAML file, and no directory of "
            f"partitions, which {_INSTEAD} write"
        )
    return DistDataset.load(
        root, dist.get_rank() if dist.is_initialized() else 0, edge_dir=edge_dir
    )


def _check_no_ssl(given: Any, where: str) -> None:
    if given is not None:
        raise ConfigError(
            f"{where}={given}: drawing edges as labels does not exist here; write them as "
            "positiveEdgeInfo of the preprocessed metadata, or draw negatives with "
            "DistLinkNeighborLoader"
        )


def _arguments(task: Message, of: str) -> dict[str, str]:
    """Return the arguments of a task that decide its dataset."""
    config, name = f"{of}Config", f"{of}Args"
    if config not in task or name not in task[config]:
        return {}
    found, where = task[config][name].content, f"{task.where}, {name}"
    ssl = "ssl_positive_label_percentage"
    _check_no_ssl(found.get(ssl), f"{where}.{ssl}")
    kept = {key: value for key, value in found.items() if key in _ARGUMENTS}
    for key, value in kept.items():
        if not isinstance(value, str) or "${" in value:
            raise ConfigError(f"{where}.{key} must be text without ${{...}}, got {value!r}")
    if kept.get("sample_edge_direction", "in") not in ("in", "out"):
        raise ConfigError(
            f"{where}.sample_edge_direction must be 'in' or 'out', got "
            f"{kept['sample_edge_direction']!r}"
        )
    if kept.get("should_use_range_partitioning", "true").lower() not in ("true", "1", "yes"):
        raise ConfigError(
            f"{where}.should_use_range_partitioning={kept['should_use_range_partitioning']}: "
            "partitions are ranges of ids here, which keep the ids of the records"
        )
    return kept


# --- splits ---------------------------------------------------------------------------------------


class _EdgeTypeOfGiGL(NamedTuple):
    """An edge type as GiGL's splitters read it; equal to ours."""

    src_node_type: str
    relation: str
    dst_node_type: str


class _HashSplitter:
    """GiGL's splits: by a hash of the id, scaled by the hashes of all ranks."""

    def __init__(self, val: float, test: float, anchors_of: list[EdgeType] | None) -> None:
        if not (0 <= val < 1 and 0 <= test < 1 and 0 < val + test < 1):
            raise ConfigError(f"num_val={val} and num_test={test} must be shares below 1 together")
        self._val, self._test = val, test
        self.anchors_of = anchors_of
        """Supervision edge types; None: all nodes are split."""

    def __call__(self, own: Tensor, everyone: list[Tensor]) -> _OneSplit:
        """Split ids of this rank; ``everyone``: those of all ranks, as hashes' range needs them."""
        hashes = [_hashed(ids) for ids in everyone if ids.numel()]
        if not own.numel() or not hashes:
            return own, own, own
        least, largest = min(h.min().item() for h in hashes), max(h.max().item() for h in hashes)
        share = (_hashed(own) - least).to(torch.float32) / float(largest)
        test = share >= 1 - self._test
        val = (share >= 1 - self._test - self._val) & ~test
        return own[~test & ~val], own[val], own[test]


def _hashed(ids: Tensor) -> Tensor:
    """Return 64-bit hashes, whose shifts are arithmetic and whose products wrap."""
    x = ids.numpy().astype(np.int64) + 1
    with np.errstate(over="ignore"):
        for _ in range(2):
            x ^= x >> 30
            x *= np.uint64(0xBF58476D1CE4E5B9).astype(np.int64)
            x ^= x >> 27
            x *= np.uint64(0x94D049BB133111EB).astype(np.int64)
            x ^= x >> 31
    return torch.from_numpy(x)


def _splitter_of(task: Message, arguments: dict[str, str]) -> _HashSplitter:
    shares = float(arguments.get("num_val", "0.1")), float(arguments.get("num_test", "0.1"))
    metadata = task["taskMetadata"]
    if "nodeBasedTaskMetadata" in metadata:
        return _HashSplitter(*shares, None)
    name = "nodeAnchorBasedLinkPredictionTaskMetadata"
    if name not in metadata:
        known = ", ".join(map(str, metadata.content))
        raise ConfigError(f"{metadata.where} has {known}: node and anchor tasks alone can be split")
    listed = metadata[name].get("supervisionEdgeTypes") or []
    where = f"{metadata.where}, {name}"
    return _HashSplitter(*shares, [Message(one, where).edge_type() for one in listed])


def _anchors(dataset: DistDataset, supervision: list[EdgeType]) -> dict[NodeType, Tensor]:
    """Return the anchors of this partition by type, ascending, each once."""
    wanted = {message_passing_to_positive_label(name) for name in supervision}
    if dataset.schema.is_homogeneous_with_labeled_edge_type:
        wanted = {message_passing_to_positive_label(DEFAULT_HOMOGENEOUS_EDGE_TYPE)}
    found: dict[NodeType, list[Tensor]] = {}
    for label_type, edges in dataset.label_edges.items():
        if label_type in wanted:
            found.setdefault(label_type[0], []).append(edges[0])
    return {name: torch.cat(ids).unique() for name, ids in found.items()}


def _ids_by_type(dataset: DistDataset) -> dict[NodeType, Tensor]:
    ids = dataset.node_ids
    return dict(ids) if isinstance(ids, Mapping) else {DEFAULT_HOMOGENEOUS_NODE_TYPE: ids}


def _split(dataset: DistDataset, splitter: Any, parts: Iterator[DistDataset]) -> None:
    """Give a dataset the splits of a splitter: ours, or an object of the user's."""
    if isinstance(splitter, _HashSplitter):
        supervision = splitter.anchors_of

        def candidates(one: DistDataset) -> dict[NodeType, Tensor]:
            return _ids_by_type(one) if supervision is None else _anchors(one, supervision)

        own, others = candidates(dataset), [candidates(part) for part in parts]
        types = set(own).union(*others)
        if not types:
            raise ConfigError(
                f"the task has no positive labels of {supervision}: its preprocessed metadata "
                "need positiveEdgeInfo for training"
            )
        nothing = torch.empty(0, dtype=torch.int64, device="cpu")
        found = {
            name: splitter(own.get(name, nothing), [one.get(name, nothing) for one in others])
            for name in types
        }
        splits = splits_of(found)
    elif getattr(splitter, "should_convert_labels_to_edges", False):
        step = -1 if dataset.edge_dir == "in" else 1  # as the edges are stored
        edges = {
            _EdgeTypeOfGiGL(*name[::step]): ends[[0, 1][::step]]
            for name, ends in dataset.label_edges.items()
        }
        splits = split_by(splitter, edge_index=edges)
    else:
        splits = split_by(splitter, node_ids=dataset.node_ids)
    set_splits(dataset, splits, typed=dataset.is_typed)


# --- partitions -----------------------------------------------------------------------------------


def _place(context: DistributedContext | None) -> tuple[int, int]:
    """Return the rank of this machine, and their number."""
    if context is not None:
        return context.global_rank, context.global_world_size
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _build(
    task_config_uri: FilePath, edge_dir: Any, pattern: str, splitter: Any, place: tuple[int, int]
) -> DistDataset:
    rank, count = place
    with tempfile.TemporaryDirectory(prefix="gigl_loader-task-") as folder:
        graph = read_gigl(task_config_uri, Path(folder) / "tables", {}, pattern)
        nodes, edges = graph.tables
        root = Path(folder) / "partitions"
        partition_tables(nodes, edges, count, root, edge_dir=edge_dir, progress=False)
        dataset = DistDataset.load(root, rank, verify="off")
        for node_type, ids in _ids_by_type(dataset).items():
            typed = node_type if isinstance(dataset.node_ids, Mapping) else None
            if ids.numel() and not np.array_equal(dataset.to_original(ids, typed), ids.numpy()):
                raise ConfigError(
                    f"{task_config_uri}: ids of nodes of {node_type!r} do not count from 0, as "
                    "GiGL's preprocessor numbers them; gigl-loader partition --from gigl maps any"
                )
        if splitter is not None:
            parts = (DistDataset.load(root, k, verify="off", mmap=True) for k in range(count))
            _split(dataset, splitter, parts)
    return dataset
