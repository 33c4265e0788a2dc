"""Small graphs with supervision, and what a batch of them must hold, in plain Python.

With a fanout of -1 or 0 nothing is left to chance: `expect` says what a batch holds, edge by edge.
"""

import gc
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from itertools import count as counter
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from gigl_loader.batch.collate import add_labels, to_data, to_hetero_data
from gigl_loader.batch.message import BatchTicket, label_column
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    is_label_edge_type,
    reverse_edge_type,
)
from gigl_loader.sampler.anchors import anchor_sampler
from gigl_loader.sampler.plan import SampleRequest, SamplingPlan
from gigl_loader.testing import InProcessPeers, as_worker_gets, sample_message

N, E = DEFAULT_HOMOGENEOUS_NODE_TYPE, DEFAULT_HOMOGENEOUS_EDGE_TYPE
BUYS = ("user", "buys", "item")
REV_BUYS = ("item", "rev_buys", "user")
KNOWS = ("user", "knows", "user")
LIKES = ("user", "likes", "item")
NEVER = ("shelf", "holds", "item")
UNUSED = ("tag", "r1", "user")
_made = counter()


@dataclass
class LinkGraph:
    """Node ``i`` has features ``[i, 0.5]`` and labels ``[i, 100 + i]``.

    It is a training node unless ``i`` is a multiple of 3.

    Edge ``i`` has features ``[i, 7]`` and weighs nothing where ``i`` is a multiple of 3, else 1.
    """

    num_nodes: dict
    edges: dict
    labels: dict
    """Supervision edge type -> (positives, negatives or None): lists of (anchor, label node)."""
    featureless: set = field(default_factory=set)
    """Node types without features."""

    @property
    def heterogeneous(self):
        return N not in self.num_nodes

    def to_pyg(self):
        data = HeteroData() if self.heterogeneous else Data()
        for node_type, count in self.num_nodes.items():
            store = data[node_type] if self.heterogeneous else data
            ids, store.num_nodes = torch.arange(count), count
            store.train_mask = ids % 3 > 0
            if node_type not in self.featureless:
                store.x = torch.stack([ids, torch.full_like(ids, 0.5, dtype=torch.float)], 1)
                store.y = torch.stack([ids, 100 + ids], 1)
        for edge_type, pairs in self.edges.items():
            store = data[edge_type] if self.heterogeneous else data
            store.edge_index = as_index(pairs)
            ids = torch.arange(len(pairs))
            store.edge_attr = torch.stack([ids, torch.full_like(ids, 7)], 1).float()
            store.edge_weight = (ids % 3 > 0).float()
        return data

    def partitions(self, count=1, *, edge_dir="in", seed=0):
        if next(_made) % 50 == 49:
            gc.collect()  # datasets of cases before, each with descriptors of its own
        generator = torch.Generator().manual_seed(seed)
        books = {
            name: torch.randint(count, (size,), generator=generator)
            for name, size in self.num_nodes.items()
        }
        book = books if self.heterogeneous else books[N]
        supervision = {
            edge_type: (as_index(positives), None if negatives is None else as_index(negatives))
            for edge_type, (positives, negatives) in self.labels.items()
        }
        kept = {"num_partitions": count, "partition_book": book} if count > 1 else {}
        return [
            DistDataset.from_pyg(
                self.to_pyg(), edge_dir=edge_dir, supervision=supervision, partition_idx=p, **kept
            )
            for p in range(count)
        ]


def shop():
    """Return users, items and what they supervise; some have no edges.

    There are 20 edge types. Tags have no features, and no edge leads to a shelf.
    """
    generator = torch.Generator().manual_seed(3)
    num_nodes = {"user": 22, "item": 16, "tag": 5, "shelf": 3}

    def pairs(num_src, num_dst, size):
        ends = torch.rand((size, 2), generator=generator) * torch.tensor([num_src, num_dst])
        return [tuple(pair) for pair in ends.long().tolist()]

    buys = pairs(20, 15, 60)
    labels = {
        BUYS: (buys[:15] + pairs(20, 15, 20), pairs(20, 15, 25)),
        KNOWS: (pairs(20, 20, 9), None),
    }
    edges = {BUYS: buys, REV_BUYS: [(i, u) for u, i in buys], KNOWS: pairs(20, 20, 30), NEVER: []}
    more = [("user", "item"), ("tag", "user"), ("item", "tag"), ("tag", "tag")]
    for number in range(16):
        src, dst = more[number % 4]
        edges[src, f"r{number}", dst] = pairs(num_nodes[src], num_nodes[dst], 4)
    return LinkGraph(num_nodes, edges, labels, {"tag"})


def fanouts_of(graph, *hops):
    """Return fanouts by edge type; where there are several, one type is not sampled at all."""
    found = dict.fromkeys(sorted(graph.edges), hops)  # samplers go through them by name
    if UNUSED in found:
        found[UNUSED] = (0,) * len(hops)
    return found


def ring():
    """Return 13 nodes of one type: a ring of 12 with a loop and a repeated edge."""
    edges = [(i, (i + 1) % 12) for i in range(12)] + [(3, 3), (0, 1)]
    labels = ([(i, (5 * i) % 12) for i in range(0, 12, 2)] + [(2, 3)], [(1, 4), (4, 1)])
    return LinkGraph({N: 13}, {E: edges}, {E: labels})


def as_index(pairs):
    return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t().contiguous()


# --- what a batch must hold ----------------------------------------------------------------------


@dataclass
class Expected:
    roots: dict
    """Node type -> global ids that come first, in order."""
    nodes: dict
    """Node type -> per hop, the set of global ids that it found."""
    edges: dict
    """Edge type -> per hop, a Counter of edge ids."""
    positives: dict
    """Supervision edge type -> per anchor, its label nodes' global ids, ascending."""
    negatives: dict


def expect(graph, anchors, supervision, fanouts, *, edge_dir="in", exclude=()):
    """Return what a batch of ``anchors`` holds; fanouts are -1 or 0."""
    anchor_type = supervision[0][0]
    signs: tuple[dict, dict] = ({}, {})
    roots: dict[str, list] = {name: [] for name in graph.num_nodes}
    roots[anchor_type] = list(anchors)
    for edge_type in supervision:
        for sign, found in enumerate(signs):
            pairs = graph.labels[edge_type][sign]
            if pairs is not None:
                found[edge_type] = [sorted(n for a, n in pairs if a == who) for who in anchors]
                for label in chain.from_iterable(found[edge_type]):
                    if label not in roots[edge_type[2]]:
                        roots[edge_type[2]].append(label)
    gone = {
        (edge_type[0], who, edge_type[2], label)
        for edge_type, rows in signs[0].items()
        for who, row in zip(anchors, rows, strict=True)
        for label in row
    }
    nodes, edges = _walk(graph, roots, fanouts, edge_dir, gone, exclude)
    return Expected(roots, nodes, edges, *signs)


def _walk(graph, roots, fanouts, edge_dir, gone, exclude):
    seen = {name: set(ids) for name, ids in roots.items()}
    frontier = {name: list(ids) for name, ids in roots.items()}
    nodes: dict[str, list] = {name: [] for name in roots}
    edges: dict[Any, list] = {edge_type: [] for edge_type in fanouts}
    for hop in range(len(next(iter(fanouts.values())))):
        found: dict[str, set] = {name: set() for name in roots}
        for edge_type, fanout in fanouts.items():
            taken: Counter[int] = Counter()
            src_type, _, dst_type = edge_type
            for edge_id, (src, dst) in enumerate(graph.edges[edge_type]):
                at, other, side = (dst, src, src_type) if edge_dir == "in" else (src, dst, dst_type)
                expanded = dst_type if edge_dir == "in" else src_type
                copies = {(src_type, src, dst_type, dst), (dst_type, dst, src_type, src)}
                if edge_type in exclude and copies & gone:
                    continue
                times = frontier[expanded].count(at) if fanout[hop] else 0
                if times:
                    taken[edge_id] += times
                    found[side] |= {other} - seen[side]
            edges[edge_type].append(taken)
        for name, ids in found.items():
            seen[name] |= ids
            frontier[name] = sorted(ids)
            nodes[name].append(ids)
    return nodes, edges


# --- batches without processes -------------------------------------------------------------------


def sample(
    datasets,
    anchors,
    supervision,
    fanouts,
    *,
    where=0,
    from_input=None,
    exclude=(),
    epoch=0,
    number=0,
    **plan,
):
    """Return the message of one batch, sampled at partition ``where``; the others answer it."""
    views = [dataset.view() for dataset in datasets]
    sampler = anchor_sampler(
        as_worker_gets(views[where]),
        SamplingPlan(input_type=supervision[0][0], fanouts=fanouts, seed=1, **plan),
        InProcessPeers(views) if len(views) > 1 else None,
        supervision=supervision,
        exclude=exclude,
        labels_in_input=from_input is not None,
    )
    seeds = torch.tensor(anchors, dtype=torch.int64)
    request = SampleRequest(
        BatchTicket(0, 1, epoch, number), seeds.numpy(), np.arange(len(anchors)), from_input or {}
    )
    return sample_message(sampler, request)


def columns(graph, anchors, supervision):
    """Return the labels of anchors as columns of an input, padded with -1."""
    found = {}
    for edge_type in supervision:
        for sign, pairs in zip(("positive", "negative"), graph.labels[edge_type], strict=True):
            if pairs is not None:
                rows = [sorted(n for a, n in pairs if a == who) for who in anchors]
                most = max(map(len, rows), default=0) + 1
                padded = [row + [-1] * (most - len(row)) for row in rows]
                found[label_column(sign, edge_type)] = torch.tensor(padded).reshape(-1, most)
    return found


def collate(message, dataset, supervision, *, as_edge_index=False):
    schema = dataset.schema
    if schema.is_homogeneous_with_labeled_edge_type:
        batch = to_data(message)
    else:
        walked = [t for t in schema.edge_types if not is_label_edge_type(t)]
        if schema.edge_dir == "out":
            walked = [reverse_edge_type(t) for t in walked]
        batch = to_hetero_data(message, sorted(dataset.view().num_nodes), walked)
    add_labels(batch, message, supervision, as_edge_index=as_edge_index)
    return batch


# --- comparing -----------------------------------------------------------------------------------


def check(batch, graph, expected, supervision, *, edge_dir="in"):
    """Compare a batch with `Expected`: nodes, edges, features, counts, labels."""
    for name, roots in expected.roots.items():
        store = batch[name] if graph.heterogeneous else batch
        ids = store.n_id.tolist()
        assert ids[: len(roots)] == roots
        per_hop = [len(roots), *map(len, expected.nodes[name])]
        assert store.num_sampled_nodes == per_hop
        start = len(roots)
        for found in expected.nodes[name]:
            assert set(ids[start : start + len(found)]) == found
            start += len(found)
        assert len(ids) == start
        check_nodes(store, graph, name)
    for edge_type, per_hop in expected.edges.items():
        store = edge_store(batch, graph, edge_type, edge_dir)
        assert store.num_sampled_edges == [found.total() for found in per_hop]
        start = 0
        for found in per_hop:
            assert Counter(store.e_id[start : start + found.total()].tolist()) == found
            start += found.total()
        check_edges(batch, graph, edge_type, edge_dir)
    check_labels(batch, graph, expected, supervision)


def check_nodes(store, graph, name):
    ids = store.n_id
    assert store.node is ids
    if name in graph.featureless:
        assert "x" not in store
        assert store.num_nodes == ids.numel()
    else:
        assert store.x.shape == (ids.numel(), 2)
        assert store.x.dtype == torch.float32
        assert store.x[:, 0].tolist() == ids.tolist()
        assert store.y.shape == (ids.numel(), 2)
        assert (store.y - ids[:, None]).tolist() == [[0, 100]] * ids.numel()


def edge_store(batch, graph, edge_type, edge_dir):
    if not graph.heterogeneous:
        return batch
    return batch[reverse_edge_type(edge_type) if edge_dir == "out" else edge_type]


def check_edges(batch, graph, edge_type, edge_dir):
    """Check that edge ids, ends and features belong together."""
    store = edge_store(batch, graph, edge_type, edge_dir)
    assert store.edge_index.dtype == torch.int64
    assert store.edge_index.shape == (2, store.e_id.numel())
    assert store.edge_attr.shape == (store.e_id.numel(), 2)
    assert store.edge_attr.tolist() == [[float(i), 7.0] for i in store.e_id.tolist()]
    src, dst = (global_ids(batch, graph, edge_type, end) for end in (0, 2))
    rows = store.edge_index.tolist()
    src_row, dst_row = rows if edge_dir == "in" else reversed(rows)
    ends = [(src[s], dst[d]) for s, d in zip(src_row, dst_row, strict=True)]
    assert ends == [tuple(graph.edges[edge_type][i]) for i in store.e_id.tolist()]


def global_ids(batch, graph, edge_type, end):
    return (batch[edge_type[end]] if graph.heterogeneous else batch).n_id.tolist()


def check_labels(batch, graph, expected, supervision):
    for attribute, by_type in (
        ("y_positive", expected.positives),
        ("y_negative", expected.negatives),
    ):
        assert (attribute in batch) == bool(by_type)
        if not by_type:
            continue
        found = batch[attribute]
        found = found if len(supervision) > 1 else {supervision[0]: found}
        assert found.keys() == by_type.keys()
        for edge_type, rows in by_type.items():
            ids = global_ids(batch, graph, edge_type, 2)
            assert as_rows(found[edge_type], len(rows), ids) == rows


def as_rows(labels, num_anchors, ids):
    """Return the global ids of each anchor's labels, of either output form."""
    if isinstance(labels, dict):
        assert list(labels) == list(range(num_anchors))
        assert all(row.dtype == torch.int64 and row.dim() == 1 for row in labels.values())
        return [[ids[i] for i in row.tolist()] for row in labels.values()]
    assert labels.dtype == torch.int64
    assert labels.size(0) == 2
    rows: list[list[int]] = [[] for _ in range(num_anchors)]
    for anchor, label in labels.t().tolist():
        rows[anchor].append(ids[label])
    return rows


# --- random graphs -------------------------------------------------------------------------------


def _pairs(num_src, num_dst, most):
    ids = st.tuples(st.integers(0, num_src - 1), st.integers(0, num_dst - 1))
    return st.lists(ids, max_size=most)


@st.composite
def link_graphs(draw):
    """Return graphs with repeated edges, loops, isolated nodes, and label edges that are edges."""
    users, items = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    if draw(st.booleans()):
        edges = draw(_pairs(users, users, 20))
        labels = draw(_pairs(users, users, 8)), draw(st.none() | _pairs(users, users, 5))
        return LinkGraph({N: users}, {E: edges}, {E: _overlap(draw, edges, labels)})
    buys = draw(_pairs(users, items, 20))
    edges = {BUYS: buys, REV_BUYS: [(i, u) for u, i in buys], KNOWS: draw(_pairs(users, users, 9))}
    by_type = {}
    for edge_type, sizes in ((BUYS, (users, items)), (KNOWS, (users, users))):
        given = draw(_pairs(*sizes, 8)), draw(st.none() | _pairs(*sizes, 5))
        by_type[edge_type] = _overlap(draw, edges[edge_type], given)
    return LinkGraph({"user": users, "item": items}, edges, by_type)


def _overlap(draw, edges, labels):
    """Let positives be edges too, as they are after a split that keeps them for messages."""
    copies = draw(st.lists(st.sampled_from(edges), max_size=6)) if edges else []
    return labels[0] + copies, labels[1]


# --- the same batch twice ------------------------------------------------------------------------


def check_same(found, expected, leave=()):
    """Compare what `batch_tensors` returns, but for the attributes ``leave``."""
    assert found.keys() == expected.keys()
    for name, value in found.items():
        if name.rpartition(".")[2] not in leave:
            _check_equal(value, expected[name], name)


def _check_equal(one, other, name):
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), name
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), name
        for key, value in one.items():
            _check_equal(value, other[key], f"{name}[{key}]")
    else:
        assert one == other, name


def edge_stores(batch, graph, edge_type):
    """Return (of the edges, of sources, of destinations)."""
    if not graph.is_heterogeneous:
        return batch, batch, batch
    return batch[edge_type], batch[edge_type[0]], batch[edge_type[2]]


def edge_pairs(batch, graph, edge_type, kind):
    """Return (seed edges, negatives), each as pairs of global ids."""
    links, src, dst = edge_stores(batch, graph, edge_type)
    count = links.input_id.numel()
    if kind == "triplet":
        own = src.n_id[src.src_index].tolist()
        pos = dst.n_id[dst.dst_pos_index].tolist()
        neg = dst.n_id[dst.dst_neg_index].reshape(count, -1).tolist()
        pairs = [(s, d) for s, row in zip(own, neg, strict=True) for d in row]
        return list(zip(own, pos, strict=True)), pairs
    ends = torch.stack([src.n_id[links.edge_label_index[0]], dst.n_id[links.edge_label_index[1]]])
    pairs = [(s, d) for s, d in ends.t().tolist()]
    return pairs[:count], pairs[count:]
