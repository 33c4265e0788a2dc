"""Padded batches, and the same without what was added to them."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import HeteroData

Batch = Any


def stores_of(batch: Batch) -> tuple[list[Any], list[Any]]:
    """Return the stores of nodes and those of edges."""
    if isinstance(batch, HeteroData):
        return list(batch.node_stores), list(batch.edge_stores)
    return [batch], [batch]


def real(batch: Batch) -> Batch:
    """Return a batch without dead nodes and edges, by its masks alone."""
    found = batch.clone()
    nodes, edges = stores_of(found)
    # before anything is cut: real nodes may be as many as padded edges
    lengths = [_lengths(store) for store in edges]
    for store in nodes:
        _cut(store, "pad_node_mask", "num_sampled_nodes", _lengths(store))
        if "seed_mask" in store:
            del store["seed_mask"]
        if "num_nodes" in store:
            store.num_nodes = store.n_id.numel()
    for store, known in zip(edges, lengths, strict=True):
        _cut(store, "pad_edge_mask", "num_sampled_edges", known)
    if "tokens" in found:
        names = found.tokens.node_types
        stores = [found[name] if isinstance(found, HeteroData) else found for name in names]
        ids = {name: store.n_id for name, store in zip(names, stores, strict=True)}
        y = found.tokens._y
        if y is not None:  # of the seeds' type
            y = y[: ids[names[int(found.tokens.type.view(-1)[0])]].numel()]
        found.tokens = replace(found.tokens, _n_id=ids, _y=y)
    elif isinstance(found, HeteroData):
        found.num_sampled_nodes = {t: found[t].num_sampled_nodes for t in found.node_types}
        found.num_sampled_edges = {t: found[t].num_sampled_edges for t in found.edge_types}
    return found


def _lengths(store: Any) -> dict[str, int]:
    return {field: value.size(0) for field, value in store.items() if isinstance(value, Tensor)}


def _cut(store: Any, name: str, counted: str, lengths: dict[str, int]) -> None:
    mask = store[name]
    size, count = mask.numel(), int(mask.sum())
    assert mask[:count].all(), "what is dead comes last"
    of_edges = name == "pad_edge_mask"
    del store[name]
    for field, value in list(store.items()):
        if not isinstance(value, Tensor):
            continue
        if field == "edge_index":
            store[field] = value[:, :count] if of_edges else value
        elif of_edges and field in NODES:
            continue
        elif lengths[field] == size and field not in SEED_SIDE:
            store[field] = value[:count]
    counts = list(store[counted]) if counted in store else []  # tokens are of no hop
    if counts:
        counts[-1] -= size - count
        assert counts[-1] >= 0
        store[counted] = counts


SEED_SIDE = {"input_id", "edge_label_index", "edge_label", "seed_time", "edge_label_time"}
# `batch` is of nodes if trees are disjoint, else of seeds, which may be as many as padded edges.
NODES = {"batch"}


def shapes(batch: Batch) -> dict[Any, Any]:
    """Return the shape of all that models read."""
    found: dict[Any, Any] = {}
    nodes, edges = stores_of(batch)
    for number, store in enumerate([*nodes, *edges]):
        masks = [name for name in ("pad_node_mask", "pad_edge_mask") if name in store]
        for name, value in store.items():
            if isinstance(value, Tensor) and name not in SEED_SIDE:
                dim = 1 if name == "edge_index" else 0
                some = masks[:1] if name in NODES else masks
                if value.size(dim) in [store[mask].numel() for mask in some]:
                    found[number, name] = (tuple(value.shape), value.dtype)
    return found


def check_dead(batch: Batch) -> None:
    """Check that no dead edge leads to or from a real node, and that none is a loop."""
    typed = isinstance(batch, HeteroData)
    edge_types: list[Any] = batch.edge_types if typed else [()]
    for edge_type in edge_types:
        store = batch[edge_type] if typed else batch
        src, dst = (batch[edge_type[0]], batch[edge_type[2]]) if typed else (batch, batch)
        dead = store.edge_index[:, ~store.pad_edge_mask]
        assert not src.pad_node_mask[dead[0]].any()
        assert not dst.pad_node_mask[dead[1]].any()
        if src is dst or (typed and edge_type[0] == edge_type[2]):
            assert (dead[0] != dead[1]).all()
    for store in stores_of(batch)[0]:
        assert int((~store.pad_node_mask).sum()) >= 2
        for name in ("n_id", "x", "y"):
            if name in store:
                assert not store[name][~store.pad_node_mask].any()


def one_shape(batches: Iterable[Batch]) -> list[Batch]:
    """Return the batches, all of which have the shape of the first."""
    found = list(batches)
    assert found
    assert all(shapes(one) == shapes(found[0]) for one in found)
    assert len(shapes(found[0])) >= 5
    return found


def seeds_of(batches: Iterable[Batch]) -> list[int]:
    """Return the input ids of batches, one after another."""
    ids: list[int] = []
    for batch in batches:
        for store in [*stores_of(batch)[0], *stores_of(batch)[1]]:
            if "input_id" in store:
                ids += store["input_id"].tolist()
                break
    return ids


def same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
