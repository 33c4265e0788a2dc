"""Links to predict: held out of message passing, and turned into supervision by split.

The split of a link depends on the seed and its two ends only, so a process with a part of the graph
gets the same splits as one with all of it. `split_links` works on a PyG graph in memory, or any
share of one with global ids; `split_partitions` on a partition directory, one partition at a time.

Each split has a supervision edge type of its own, so that one dataset serves all three::

    splits = split_links(data, ("user", "buys", "item"), num_val=0.1, num_test=0.1)
    dataset = DistDataset.from_pyg(splits.data, supervision=splits.supervision)
    DistABLPLoader(dataset, ..., input_nodes=("user", splits.val.anchors),
                   supervision_edge_type=splits.val.edge_type)
"""

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from gigl_loader.dataset.format.directory import Format, Target, complete_or_nothing
from gigl_loader.dataset.format.fetched_root import opened_root
from gigl_loader.dataset.format.glt_files import load_tensor, read_edges, read_partition
from gigl_loader.dataset.format.mapped import is_mapped_format
from gigl_loader.dataset.format.view_writer import save_tensor, write_views
from gigl_loader.dataset.from_pyg.pyg_graph import read_pyg
from gigl_loader.dataset.identity import GAMMA, mixed
from gigl_loader.dataset.one_or_by_type import Graph, PyGGraph
from gigl_loader.dataset.partition.adjacency import edges_of, kept_edges, label_adjacency
from gigl_loader.dataset.partition.checks import check_edge_type
from gigl_loader.dataset.partition.partition_view import PartitionView, Splits, WithSplits
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    SPLITS,
    EdgeType,
    FilePath,
    Split,
    is_label_edge_type,
    message_passing_to_positive_label,
    reverse_edge_type,
)
from gigl_loader.errors import ConfigError, WrongTypeError

# Links per step; a step takes some arrays of 32 MB, for any number of links.
_CHUNK = 4 * 1024 * 1024
_TRAIN, _VAL, _TEST, _DISJOINT = range(4)
_NO_LINKS = torch.empty((2, 0), dtype=torch.int64, device="cpu")


@dataclass(frozen=True)
class LinkSplit:
    """The supervision of one split."""

    edge_type: EdgeType
    """The supervision edge type to give a loader; its label edge type holds `links`."""
    links: Tensor
    """``[2, num_links]`` int64, global ids, anchors in row 0."""

    @property
    def anchors(self) -> Tensor:
        """``[num_anchors]`` int64: the nodes with a link in this split, ascending."""
        return cast("Tensor", torch.unique(self.links[0]))

    def __repr__(self) -> str:
        return f"LinkSplit({_of_type(self.edge_type)}links={self.links.size(1)})"


@dataclass(frozen=True)
class LinkSplits:
    """A graph to pass messages over, and the links to predict in training, validation and test."""

    data: Graph
    """A shallow copy of the input without validation and test links and their reverse edges. Its
    ``train_mask``, ``val_mask`` and ``test_mask`` on the source type mark each split's anchors."""
    train: LinkSplit
    val: LinkSplit
    test: LinkSplit

    @property
    def supervision(self) -> dict[EdgeType, tuple[Tensor, None]]:
        """The argument ``supervision`` of `DistDataset.from_pyg` and `partition_graph`."""
        return {split.edge_type: (split.links, None) for split in (self.train, self.val, self.test)}

    def __repr__(self) -> str:
        counts = (
            f"{name}={split.links.size(1)}"
            for name, split in zip(SPLITS, (self.train, self.val, self.test), strict=True)
        )
        return f"LinkSplits({_of_type(self.train.edge_type)}{', '.join(counts)})"


def _of_type(edge_type: EdgeType) -> str:
    # the default type of a graph with one type has no meaning for users
    return "" if edge_type[0] == DEFAULT_HOMOGENEOUS_NODE_TYPE else f"{edge_type}, "


def split_supervision_type(edge_type: EdgeType, split: Split) -> EdgeType:
    """Return the supervision edge type of a split: ``edge_type`` itself, ``_val`` or ``_test``.

    Args:
        edge_type: The predicted type.
        split: ``"train"``, ``"val"`` or ``"test"``.
    """
    if split not in SPLITS:
        raise ConfigError(f'split must be "train", "val" or "test", got {split!r}')
    src, relation, dst = edge_type
    return edge_type if split == "train" else (src, f"{relation}_{split}", dst)


@dataclass(frozen=True)
class _Plan:
    """Checked arguments of a split."""

    edge_type: EdgeType
    reverse: tuple[EdgeType, ...]
    num_val: float
    num_test: float
    disjoint_train_ratio: float
    seed: int

    def split_of_edges(self, edge_index: Tensor, *, reverse: bool) -> Tensor:
        """Return ``[num_edges]`` uint8, the split of each edge; ``reverse``: of a reverse type."""
        src, dst = edge_index.flip(0) if reverse else edge_index
        # an undirected graph has both; in different splits, one would reveal the other
        if self.edge_type[0] == self.edge_type[2]:  # both directions are one link
            src, dst = torch.minimum(src, dst), torch.maximum(src, dst)
        draws = link_draws(src, dst, self.seed)
        codes = torch.full((draws.numel(),), _TRAIN, dtype=torch.uint8, device="cpu")
        if self.disjoint_train_ratio:
            # A stream of its own: the first draw is above num_val + num_test for each training
            # link, and a fraction of those draws below disjoint_train_ratio would be another one.
            second_draws = link_draws(src, dst, self.seed, stream=1)
            codes[second_draws < self.disjoint_train_ratio] = _DISJOINT
        # test overwrites validation, and both overwrite training: the test links are those below
        # num_test, for any num_val
        codes[draws < self.num_test + self.num_val] = _VAL
        codes[draws < self.num_test] = _TEST
        return codes

    def links(self, edge_index: Tensor, codes: Tensor) -> Iterator[tuple[LinkSplit, Split]]:
        """Yield the supervision of each split."""
        train = _DISJOINT if self.disjoint_train_ratio else _TRAIN
        for split, code in zip(SPLITS, (train, _VAL, _TEST), strict=True):
            edge_type = split_supervision_type(self.edge_type, split)
            yield LinkSplit(edge_type, edge_index[:, codes == code]), split


def split_links(
    data: PyGGraph,
    edge_type: EdgeType | None = None,
    *,
    num_val: float = 0.1,
    num_test: float = 0.2,
    disjoint_train_ratio: float = 0.0,
    rev_edge_types: EdgeType | list[EdgeType | None] | Literal["auto"] | None = "auto",
    seed: int = 0,
) -> LinkSplits:
    """Split the edges of one type into training, validation and test links.

    The keywords mean the same as in PyG's ``RandomLinkSplit``. Validation and test links leave
    message passing, and their reverse edges with them. Between nodes of one type both directions
    are one link and share its split, and parallel edges share it, too. The remaining edges keep all
    their attributes, and edge ids count them.

    Args:
        data: A `Data` or `HeteroData`, or a share of one: the result for an edge does not depend on
            the other edges.
        edge_type: The type to predict; None: the only one of a `Data`.
        num_val: Fraction of the links for validation, expected, in ``[0, 1)``.
        num_test: Fraction for test. The test links do not depend on ``num_val``.
        disjoint_train_ratio: Fraction of the training links that supervise and pass no messages;
            the other training links then pass messages and do not supervise. 0: all do both.
        rev_edge_types: The reverse type with the same links, or a list of such types.
            ``"auto"``: those by GLT's and PyG's naming, if there are any; None: there is none.
        seed: Another seed gives other splits.

    Raises:
        ConfigError: ``data`` is malformed, a type is unknown or a fraction out of range.

    Source:
        Draws are SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number
        generators", figure 13) over seed and ends, as a number in [0, 1).
    """
    source = read_pyg(data)
    if edge_type is None and source.heterogeneous:
        raise ConfigError("edge_type is needed to split the links of a HeteroData")
    plan = _make_plan(
        edge_type or DEFAULT_HOMOGENEOUS_EDGE_TYPE,
        list(source.edges),
        rev_edge_types,
        num_val,
        num_test,
        disjoint_train_ratio,
        seed,
    )
    # PyG copies the stores, not the tensors: the assignments below do not change the input graph
    result = copy.copy(data)
    splits = {}
    for kept_type in (plan.edge_type, *plan.reverse):
        edge_index = source.edges[kept_type].edge_index
        codes = plan.split_of_edges(edge_index, reverse=kept_type != plan.edge_type)
        # training edges only: those that only supervise (disjoint) are not walked, either
        _keep_edges(result, _edge_store(result, kept_type), codes == _TRAIN)
        if kept_type == plan.edge_type:
            splits = {split: links for links, split in plan.links(edge_index, codes)}
    _mark_anchors(result, source.num_nodes[plan.edge_type[0]], plan.edge_type[0], splits)
    return LinkSplits(result, splits["train"], splits["val"], splits["test"])


def link_draws(src: Tensor, dst: Tensor, seed: int, *, stream: int = 0) -> Tensor:
    """Return ``[num_links]`` float64 in ``[0, 1)``, a function of seed, stream and both ends."""
    draws = torch.empty(src.numel(), dtype=torch.float64, device="cpu")
    # an array: numpy warns when a uint64 scalar wraps around, and a seed may be negative
    key = mixed(np.array([seed % 2**64], np.uint64) + GAMMA)
    key = mixed((key ^ np.uint64(stream)) + GAMMA)
    for start in range(0, src.numel(), _CHUNK):
        part = slice(start, start + _CHUNK)
        # one end after the other, mixed between: (a, b) and (b, a) are different links
        state = mixed((key ^ src[part].numpy().astype(np.uint64)) + GAMMA)
        state = mixed((state ^ dst[part].numpy().astype(np.uint64)) + GAMMA)
        # the 53 bits of a float64: all of them count, and 1.0 is impossible
        draws[part] = torch.from_numpy((state >> np.uint64(11)) * 2.0**-53)
    return draws


def _make_plan(
    edge_type: EdgeType,
    known: list[EdgeType],
    rev_edge_types: Any,
    num_val: Any,
    num_test: Any,
    disjoint_train_ratio: Any,
    seed: Any,
) -> _Plan:
    check_edge_type(edge_type, "split_links")
    if edge_type not in known or is_label_edge_type(edge_type):
        raise ConfigError(f"there are no edges of type {edge_type} to split; there are {known}")
    fractions = {
        "num_val": num_val,
        "num_test": num_test,
        "disjoint_train_ratio": disjoint_train_ratio,
    }
    for name, value in fractions.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise WrongTypeError(f"{name} must be a fraction, got {value!r}")
        if not (math.isfinite(value) and 0 <= value < 1):
            raise ConfigError(
                f"{name} must be a fraction in [0, 1), got {value}: each link is drawn by itself, "
                "so counts cannot be promised"
            )
    # each is below 1, but perhaps not their sum
    if num_val + num_test >= 1:
        raise ConfigError(f"num_val + num_test = {num_val + num_test} leaves nothing to train on")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise WrongTypeError(f"seed must be an int, got {seed!r}")
    reverse = _reverse_types(edge_type, known, rev_edge_types)
    return _Plan(edge_type, reverse, num_val, num_test, disjoint_train_ratio, seed)


def _reverse_types(
    edge_type: EdgeType, known: list[EdgeType], rev_edge_types: Any
) -> tuple[EdgeType, ...]:
    src, relation, dst = edge_type
    if rev_edge_types is None:
        return ()
    if rev_edge_types == "auto":
        # GLT removes a "rev_" if there is one; PyG's ToUndirected always adds one, and with
        # merge=False also between nodes of one type, where GLT keeps the name
        names = {reverse_edge_type(edge_type), (dst, f"rev_{relation}", src)} - {edge_type}
        return tuple(sorted(names & set(known)))
    named = rev_edge_types if isinstance(rev_edge_types, list) else [rev_edge_types]
    # PyG uses None in a list for "no type"
    for reverse in (rev_type for rev_type in named if rev_type is not None):
        check_edge_type(reverse, "rev_edge_types")
        if reverse not in known or (reverse[0], reverse[2]) != (dst, src):
            raise ConfigError(
                f"rev_edge_types must name edge types of the graph from {dst!r} to {src!r}, got "
                f"{reverse}; there are {known}"
            )
    # without itself: both directions of a link are in the one type, and one link to `codes`
    return tuple(dict.fromkeys(rev_type for rev_type in named if rev_type not in (None, edge_type)))


def _edge_store(data: Data | HeteroData, edge_type: EdgeType) -> Any:
    return data[edge_type] if isinstance(data, HeteroData) else data.stores[0]


def _keep_edges(data: Any, store: Any, keep: Tensor) -> None:
    # listed before any cut: PyG recognises edge attributes by the number of edges
    names = [name for name in store if name != "edge_index" and store.is_edge_attr(name)]
    for name in names:
        store[name] = _kept_values(store[name], data.__cat_dim__(name, store[name], store), keep)
    store["edge_index"] = _kept_values(store["edge_index"], 1, keep)


def _kept_values(values: Any, dim: Any, keep: Tensor) -> Any:
    """Return the attribute for the edges to keep; ``dim``: its dimension of edges, if any."""
    if isinstance(values, Tensor):
        return values.index_select(dim, keep.nonzero().view(-1).to(values.device))
    if isinstance(values, np.ndarray):
        return np.compress(keep.numpy(), values, axis=dim)
    if isinstance(values, list | tuple):
        return [value for value, kept in zip(values, keep.tolist(), strict=True) if kept]
    return values


def _mark_anchors(
    data: Any, num_nodes: int, node_type: str, splits: Mapping[Split, LinkSplit]
) -> None:
    store = data[node_type] if isinstance(data, HeteroData) else data.stores[0]
    for split, links in splits.items():
        mask = torch.zeros(num_nodes, dtype=torch.bool, device="cpu")
        mask[links.links[0]] = True
        store[f"{split}_mask"] = mask
    # stated, as PyG counts nodes by the highest known id, which a held-out link may have had
    store["num_nodes"] = num_nodes


# --- directories ----------------------------------------------------------------------------------


def split_partitions(
    root: FilePath,
    output_root: FilePath,
    edge_type: EdgeType | None = None,
    *,
    num_val: float = 0.1,
    num_test: float = 0.2,
    disjoint_train_ratio: float = 0.0,
    rev_edge_types: EdgeType | list[EdgeType | None] | Literal["auto"] | None = "auto",
    seed: int = 0,
    overwrite: bool = False,
) -> None:
    """Split the links of a partition directory, with one partition in memory at a time.

    Args:
        root: A directory, or the URL of one, that `DistDataset.load` reads.
        output_root: Directory to write: a new path, an empty directory or a URL. Its datasets have
            label edges by split, and the anchors as training, validation and test nodes.
        edge_type: As in `split_links`; None in a homogeneous graph.
        num_val: As in `split_links`, and so are the splits of all links.
        num_test: As in `split_links`.
        disjoint_train_ratio: As in `split_links`.
        rev_edge_types: As in `split_links`.
        seed: As in `split_links`.
        overwrite: Replace the partitions at ``output_root``.

    Raises:
        ConfigError: ``output_root`` holds files, and as `DistDataset.load` and `split_links`.
        UsageError: Another process is writing to ``output_root``.
    """
    with opened_root(root) as folder:
        format: Format = "mapped" if is_mapped_format(folder) else "glt"
        target = Target(output_root, overwrite=overwrite, format=format)
        # partitions are read while others are written
        if target.path == folder.absolute():
            raise ConfigError(f"output_root must be another directory than {root}")
        target.check()
        # the first one, to check the plan
        view, _ = read_partition(folder, 0, None)
        if edge_type is None and view.is_heterogeneous:
            raise ConfigError("edge_type is needed to split the links of a heterogeneous graph")
        walked = [t for t in view.adjacency if not is_label_edge_type(t)]
        plan = _make_plan(
            edge_type or DEFAULT_HOMOGENEOUS_EDGE_TYPE,
            walked,
            rev_edge_types,
            num_val,
            num_test,
            disjoint_train_ratio,
            seed,
        )
        # a second split of one type would add to the labels of the first, and leak them
        if {_label_type(plan, split) for split in SPLITS} & view.adjacency.keys():
            raise ConfigError(f"{root} has label edges of {plan.edge_type} already")
        made: dict[str, Any] = {"method": "split_partitions", "seed": plan.seed}
        with complete_or_nothing(target) as new:
            # beside the result, in the folder that `complete_or_nothing` removes
            spill = new.parent / "spill"
            indices = range(view.num_partitions)
            # An edge is stored with the expanded node, supervision with the anchor, whose owner may
            # differ: a partition is complete once the links of all partitions were read.
            for index in indices:
                edges = read_edges(folder, index, plan.edge_type, view.edge_dir)
                _spill_links(edges, view, plan, spill, index)
            shares = (
                _split_share(*read_partition(folder, index, view.edge_dir), plan, spill)
                for index in indices
            )
            write_views(new, shares, format=format, source=folder, **made)


def _label_type(plan: _Plan, split: Split) -> EdgeType:
    return message_passing_to_positive_label(split_supervision_type(plan.edge_type, split))


def _spill_links(
    edges: Tensor, view: PartitionView, plan: _Plan, spill: Path, partition_idx: int
) -> None:
    """Write the supervision among the edges of a partition, by its anchors' owners."""
    book = view.node_books.get(plan.edge_type[0])
    for links, split in plan.links(edges, plan.split_of_edges(edges, reverse=False)):
        anchors = links.links[0]
        owners = torch.zeros_like(anchors) if book is None else book.owner(anchors)
        for owner in torch.unique(owners).tolist():
            # a file for each pair of partitions: one at a time in memory, and each written once
            path = spill / split / str(owner) / f"{partition_idx}.pt"
            save_tensor(path, links.links[:, owners == owner])


def _split_share(view: PartitionView, splits: Splits, plan: _Plan, spill: Path) -> WithSplits:
    """Return a partition without the held-out links, with its supervision from the spill."""
    adjacency = dict(view.adjacency)
    for kept_type in (plan.edge_type, *plan.reverse):
        edges = adjacency[kept_type]
        codes = plan.split_of_edges(
            edges_of(edges, view.edge_dir), reverse=kept_type != plan.edge_type
        )
        # edge ids remain those of the whole graph, so features and books do not change
        adjacency[kept_type] = kept_edges(edges, codes == _TRAIN)
    for split in SPLITS:
        files = (spill / split / str(view.partition_idx)).glob("*.pt")
        links = torch.cat([_NO_LINKS, *(load_tensor(path) for path in files)], dim=1)
        label_type = _label_type(plan, split)
        # grouped and sorted: the reading order of the files does not matter
        adjacency[label_type] = label_adjacency(links, label_type, view.num_nodes)
        splits.setdefault(split, {})[plan.edge_type[0]] = torch.unique(links[0])
    return replace(view, adjacency=adjacency), splits
