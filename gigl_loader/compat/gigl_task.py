"""Datasets of GiGL's task configurations: the partition of this machine, with GiGL's splits.

Source:
    GiGL at fee4ba50, ``gigl/distributed/dataset_factory.py``,
    ``gigl/distributed/graph_store/storage_utils.py`` and ``gigl/utils/data_splitters.py``.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from gigl_loader import DistDataset, DistributedContext
from gigl_loader.dataset.partition.partition_output import by_type
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    EdgeDir,
    EdgeType,
    FilePath,
    NodeType,
    expanded_end,
    glt_edge_type,
    message_passing_to_positive_label,
)
from gigl_loader.errors import ConfigError
from gigl_loader.loader.deployment.job_ranks import resolve_runtime
from gigl_loader.partitioning.other_libraries.gigl_graphs import (
    RECORDS,
    Message,
    metadata_of,
    read_records,
)
from gigl_loader.partitioning.other_libraries.gigl_shares import exchange_shares
from gigl_loader.runtime.object_storage.object_folder import is_url
from gigl_loader.runtime.ranks.collectives import RankExchange, end_group, report_failure_to_ranks

__all__ = ["build_dataset", "build_dataset_from_task_config_uri", "build_storage_dataset"]

_Ids = tuple[Tensor, Tensor, Tensor]
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

    Call it once on each machine. The ranks of the process group are the machines; without one, it
    is started for this call, as the environment has it. Each reads a run of the files of each type,
    rows go to their owners, and the partitions are those of ``gigl-loader partition --from gigl``.

    Args:
        task_config_uri: The task's YAML file: a path, ``gs://`` or ``s3://``.
        distributed_context: Deprecated: where this machine and the first one are, to start the
            process group.
        is_inference: Read ``inferencerArgs``, and make no splits. False: ``trainerArgs``, and split
            as GiGL does: nodes, or the anchors of labels, by a hash of their ids.
        _tfrecord_uri_pattern: A regular expression that names of files with records match.

    Raises:
        ConfigError: A file is missing or malformed, or the task asks for something that does not
            exist here; the message names the key.
    """
    task = Message.read(str(task_config_uri))
    arguments = _arguments(task, "inferencer" if is_inference else "trainer")
    edge_dir = cast("EdgeDir", arguments.get("sample_edge_direction", "in"))
    most = arguments.get("max_labels_per_anchor_node")
    splitter = None if is_inference else _splitter_of(task, arguments, edge_dir)
    graph = metadata_of(task)
    dataset = _build(graph, edge_dir, _tfrecord_uri_pattern, splitter, distributed_context)
    dataset.max_labels_per_anchor_node = None if most is None else int(most)
    return dataset


def build_dataset(
    serialized_graph_metadata: object,
    sample_edge_direction: EdgeDir,
    distributed_context: DistributedContext | None = None,
    should_load_tensors_in_parallel: bool = True,
    partitioner_class: type | None = None,
    node_tf_dataset_options: object = None,
    edge_tf_dataset_options: object = None,
    splitter: Callable[..., Any] | None = None,
    _ssl_positive_label_percentage: float | None = None,
    _dataset_building_port: int | None = None,
    weight_edge_feat_name: str | Mapping[EdgeType, str] | None = None,
) -> DistDataset:
    """Return this machine's partition of the graph that GiGL's ``SerializedGraphMetadata`` names.

    Args:
        serialized_graph_metadata: GiGL's object, or one with its attributes.
        sample_edge_direction: ``edge_dir`` of the dataset.
        distributed_context: As for `build_dataset_from_task_config_uri`.
        should_load_tensors_in_parallel: Not looked at: records are read one file at a time.
        partitioner_class: None, or a class for ranges, ``DistRangePartitioner``: partitions are
            ranges of ids.
        node_tf_dataset_options: Not looked at: TensorFlow reads nothing.
        edge_tf_dataset_options: Not looked at, as well.
        splitter: As for `build_storage_dataset`.
        _ssl_positive_label_percentage: None: drawn labels do not exist here.
        _dataset_building_port: None: no port is needed.
        weight_edge_feat_name: The feature of edges that is their weight, or these by edge type. It
            is no column of their features.

    Raises:
        ConfigError: As `build_dataset_from_task_config_uri`.
    """
    _check_no_ssl(_ssl_positive_label_percentage, "_ssl_positive_label_percentage")
    if "RangePartitioner" not in getattr(partitioner_class, "__name__", "RangePartitioner"):
        raise ConfigError(
            f"partitioner_class={partitioner_class}: partitions are ranges of ids here, as of "
            "DistRangePartitioner; gigl-loader partition --from gigl has other methods"
        )
    if _dataset_building_port is not None:
        raise ConfigError("_dataset_building_port has no use here: leave it out")
    given: Any = serialized_graph_metadata
    nodes = by_type(given.node_entity_info, DEFAULT_HOMOGENEOUS_NODE_TYPE)
    edges = by_type(given.edge_entity_info, DEFAULT_HOMOGENEOUS_EDGE_TYPE)
    weights: Any = weight_edge_feat_name
    if isinstance(weights, str) or weights is None:
        weights = dict.fromkeys(edges, weights)
    weights, infos = by_type(dict(weights), None), {}
    for key, info in edges.items():
        src, dst = info.entity_key
        main = {**_record_info(info), "weightKey": weights.get(key)}
        infos[key] = {"srcNodeIdKey": src, "dstNodeIdKey": dst, "mainEdgeInfo": main}
        for kind in ("positive", "negative"):
            of_kind = getattr(given, f"{kind}_label_entity_info")
            labels = by_type(of_kind, DEFAULT_HOMOGENEOUS_EDGE_TYPE).get(key)
            if labels is not None:
                infos[key][f"{kind}EdgeInfo"] = _record_info(labels)
    names = {number: dict(zip(_EDGE_TYPE, key, strict=True)) for number, key in enumerate(edges)}
    rows = {
        "condensedNodeTypeToPreprocessedMetadata": {
            number: {**_record_info(info), "nodeIdKey": info.entity_key}
            for number, info in enumerate(nodes.values())
        },
        "condensedEdgeTypeToPreprocessedMetadata": dict(enumerate(infos.values())),
    }
    types = {"condensedNodeTypeMap": dict(enumerate(nodes)), "condensedEdgeTypeMap": names}
    graph = Message(types, _SERIALIZED), Message(rows, _SERIALIZED)
    typed = isinstance(given.edge_entity_info, Mapping)
    return _build(graph, sample_edge_direction, RECORDS, splitter, distributed_context, typed=typed)


_SERIALIZED = "serialized_graph_metadata"
_EDGE_TYPE = ("srcNodeType", "relation", "dstNodeType")


def _record_info(info: Any) -> dict[str, Any]:
    """Return the fields of GiGL's ``SerializedTFRecordInfo`` as preprocessed metadata have them."""
    if info.packed_feature_key is not None:
        raise ConfigError(
            f"{info.packed_feature_key!r} is a packed feature: build_dataset_from_task_config_uri "
            "reads these, from the task's files"
        )
    prefix = getattr(info.tfrecord_uri_prefix, "uri", info.tfrecord_uri_prefix)
    return {
        "featureKeys": list(info.feature_keys),
        "featureDim": info.feature_dim,
        "labelKeys": list(info.label_keys),
        "tfrecordUriPrefix": str(prefix),
        "tfrecordUriPattern": info.tfrecord_uri_pattern,
    }


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
        splitter: Of a task. Called with ``node_ids=``, or if it has an attribute
            ``should_convert_labels_to_edges`` with ``edge_index=``, the edges and label edges of
            this partition by type; returns ids for training, validation and testing, or these by
            node type.
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
    else:
        _check_no_ssl(ssl_positive_label_percentage, "ssl_positive_label_percentage")
        how = sample_edge_direction or "in"
        graph = metadata_of(Message.read(str(task_config_uri)))
        dataset = _build(graph, how, tf_record_uri_pattern or RECORDS, splitter)
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


class _HashSplitter:
    """GiGL's splits: by a hash of the id, scaled by the hashes of all ranks.

    Args:
        val: Share of the nodes for validation.
        test: Share for testing.
        edge_dir: Of the dataset.
        supervision: Edge types whose anchors are split; None: all nodes are.
    """

    def __init__(
        self, val: float, test: float, edge_dir: EdgeDir, supervision: list[EdgeType] | None
    ) -> None:
        if not (0 <= val < 1 and 0 <= test < 1 and 0 < val + test < 1):
            raise ConfigError(f"num_val={val} and num_test={test} must be shares below 1 together")
        self._val, self._test = val, test
        self._edge_dir, self._supervision = edge_dir, supervision
        if supervision is not None:
            self.should_convert_labels_to_edges = True

    def __call__(self, *, node_ids: Any = None, edge_index: Any = None) -> dict[NodeType, _Ids]:
        """Split the nodes of this rank, or the anchors of its positives."""
        own = by_type(node_ids, DEFAULT_HOMOGENEOUS_NODE_TYPE)
        if edge_index is not None:
            own = self._anchors(by_type(edge_index, DEFAULT_HOMOGENEOUS_EDGE_TYPE))
        hashes = {name: _hashed(ids) for name, ids in own.items() if ids.numel()}
        extent = {name: (int(h.min()), int(h.max())) for name, h in hashes.items()}
        everyone = RankExchange().gather(extent, dict[str, tuple[int, int]])
        names = dict.fromkeys(name for extents in everyone for name in extents)
        if not names:
            raise ConfigError(
                f"the task has no positive labels of {self._supervision}: its preprocessed "
                "metadata need positiveEdgeInfo for training"
            )
        nothing = torch.empty(0, dtype=torch.int64, device="cpu")
        return {
            name: self._cut(own.get(name, nothing), [one[name] for one in everyone if name in one])
            for name in names
        }

    def _anchors(self, edges: dict[EdgeType, Tensor]) -> dict[NodeType, Tensor]:
        """Return the anchors of positives by type, ascending, each once."""
        supervision = self._supervision or []
        if DEFAULT_HOMOGENEOUS_EDGE_TYPE in edges:
            supervision = [DEFAULT_HOMOGENEOUS_EDGE_TYPE]
        found: dict[NodeType, list[Tensor]] = {}
        for name in supervision:
            stored = glt_edge_type(message_passing_to_positive_label(name), self._edge_dir)
            if stored in edges:
                found.setdefault(name[0], []).append(edges[stored][expanded_end(self._edge_dir)])
        return {name: torch.cat(ids).unique() for name, ids in found.items()}

    def _cut(self, own: Tensor, extents: list[tuple[int, int]]) -> _Ids:
        lowest, highest = zip(*extents, strict=True)
        share = (_hashed(own) - min(lowest)).to(torch.float32) / float(max(highest))
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


def _splitter_of(task: Message, arguments: dict[str, str], edge_dir: EdgeDir) -> _HashSplitter:
    shares = float(arguments.get("num_val", "0.1")), float(arguments.get("num_test", "0.1"))
    metadata = task["taskMetadata"]
    if "nodeBasedTaskMetadata" in metadata:
        return _HashSplitter(*shares, edge_dir, None)
    name = "nodeAnchorBasedLinkPredictionTaskMetadata"
    if name not in metadata:
        known = ", ".join(map(str, metadata.content))
        raise ConfigError(f"{metadata.where} has {known}: node and anchor tasks alone can be split")
    listed = metadata[name].get("supervisionEdgeTypes") or []
    where = f"{metadata.where}, {name}"
    supervision = [Message(one, where).edge_type() for one in listed]
    return _HashSplitter(*shares, edge_dir, supervision)


# --- partitions -----------------------------------------------------------------------------------


@contextmanager
def _process_group(context: DistributedContext | None, *, needed: bool) -> Iterator[None]:
    """Have a process group, as GiGL's builders do: the one there is, or one until the end."""
    started = not dist.is_initialized()
    if not started:
        if context is not None and context.global_world_size != dist.get_world_size():
            raise ConfigError(
                f"distributed_context has {context.global_world_size} machines, the process group "
                f"{dist.get_world_size()} ranks: leave the context out"
            )
    elif context is not None and context.global_world_size > 1:
        resolve_runtime(context, 0, 1)
    elif context is None and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    elif needed:  # splitters of GiGL's ask all ranks
        store = dist.HashStore()  # type: ignore[attr-defined]  # torch does not declare it
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    else:
        started = False
    try:
        yield
    finally:
        if started:
            end_group()


def _build(
    graph: tuple[Message, Message],
    edge_dir: Any,
    pattern: str,
    splitter: Any,
    context: DistributedContext | None = None,
    *,
    typed: bool | None = None,
) -> DistDataset:
    """Return this rank's partition.

    Args:
        graph: Its types, and its preprocessed metadata.
        edge_dir: Of the dataset.
        pattern: Of the names of files with records.
        splitter: Ours, one of the user's, or None.
        context: The machines, if no process group tells.
        typed: Whether types keep their names. None: if there are several.
    """
    needed = splitter is not None and not isinstance(splitter, _HashSplitter)
    with (
        _process_group(context, needed=needed),
        report_failure_to_ranks("could not build its dataset"),
        tempfile.TemporaryDirectory(prefix="gigl_loader-task-") as folder,
    ):
        ranks = RankExchange()
        share = read_records(*graph, Path(folder), pattern, (ranks.rank, ranks.size))
        if typed is None:
            typed = len(share.nodes) > 1 or len(share.edges) > 1
        output = exchange_shares(share, edge_dir, typed=typed)
        dataset = DistDataset(ranks.rank, ranks.size, edge_dir)
        dataset.build(output, splitter)
        _count_classes(dataset, ranks)
    return dataset


def _count_classes(dataset: DistDataset, ranks: RankExchange) -> None:
    """Tell a dataset how many classes labels have over all partitions."""
    view = dataset.view()
    highest = {
        name: int(rows.values.max())
        for name, rows in view.node_labels.items()
        if rows.values.dtype == torch.int64 and rows.values.dim() == 1 and rows.values.numel()
    }
    for labels in ranks.gather(highest, dict[str, int]):
        for name, label in labels.items():
            for counts in (view.num_classes, dataset.schema.num_classes):
                counts[name] = max(counts.get(name, 0), label + 1)
