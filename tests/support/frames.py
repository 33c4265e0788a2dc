"""Rows of mixed types, as a user has them: of all kinds, with missing values."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch_frame import TensorFrame, stype
from torch_frame.data import MultiEmbeddingTensor, MultiNestedTensor
from torch_geometric.data import HeteroData

KINDS = (
    "timestamp",  # not in alphabetic order: the order of kinds is kept
    "numerical",
    "categorical",
    "embedding",
    "multicategorical",
    "sequence_numerical",
)
EDGE = ("user", "buys", "item")


def random_frame(
    num_rows: int, seed: int, kinds: Iterable[str] = KINDS, columns: int = 2
) -> TensorFrame:
    """Return rows of random values; about a fifth is missing, in the form of each kind."""
    generator = torch.Generator().manual_seed(seed)
    feats = {stype(kind): _values(kind, num_rows, columns, generator) for kind in kinds}
    names = {kind: [f"{kind.value}_{k}" for k in range(columns)] for kind in feats}
    return TensorFrame(feats, names)


def _values(kind: str, n: int, columns: int, generator: torch.Generator) -> Any:
    missing = torch.rand(n, columns, generator=generator) < 0.2
    if kind == "numerical":
        values = torch.randn(n, columns, generator=generator)
        values[torch.rand(n, columns, generator=generator) < 0.1] = -torch.inf
        return values.masked_fill(missing, torch.nan)
    if kind == "categorical":
        return torch.randint(0, 70_000, (n, columns), generator=generator).masked_fill(missing, -1)
    if kind == "timestamp":
        values = torch.randint(0, 60, (n, columns, 7), generator=generator)
        values[..., 0] += 1990
        return values.masked_fill(missing[..., None], -1)
    if kind == "embedding":  # of several widths
        widths = range(1, columns + 1)
        return MultiEmbeddingTensor.from_tensor_list(
            [torch.randn(n, width, generator=generator) for width in widths]
        )
    lengths = torch.randint(0, 4, (n, columns), generator=generator)
    mat = []
    for row in range(n):
        cells = [torch.randn(int(k), generator=generator) for k in lengths[row]]
        if kind == "multicategorical":
            cells = [(10 * cell).abs().long() for cell in cells]
            cells = [
                torch.tensor([-1]) if lost else cell
                for cell, lost in zip(cells, missing[row], strict=True)
            ]
        mat.append(cells)
    if not n:
        dtype = torch.float32 if kind == "sequence_numerical" else torch.int64
        return MultiNestedTensor(0, columns, torch.empty(0, dtype=dtype), torch.zeros(1).long())
    return MultiNestedTensor.from_tensor_mat(mat)


def shop(num_users: int = 23, num_items: int = 31, num_edges: int = 90) -> HeteroData:
    """Return a graph whose users, items and purchases have rows of mixed types; shops have x."""
    generator = torch.Generator().manual_seed(5)

    def ends(count: int) -> Tensor:
        return torch.randint(0, count, (num_edges,), generator=generator)

    graph = HeteroData()
    graph["user"].tf, graph["item"].tf = random_frame(num_users, 1), random_frame(num_items, 2)
    graph["user"].time = torch.arange(num_users)
    graph["item"].time = torch.arange(num_items) % 7
    graph["shop"].x = torch.arange(4.0).view(4, 1)  # never reached
    graph[EDGE].edge_index = torch.stack([ends(num_users), ends(num_items)])
    graph[EDGE].tf = random_frame(num_edges, 3, ("categorical", "numerical"))
    graph["item", "rev_buys", "user"].edge_index = graph[EDGE].edge_index.flip(0)
    graph["shop", "sells", "shop"].edge_index = torch.empty(2, 0, dtype=torch.int64)
    return graph


def same(found: Any, wanted: Any) -> bool:
    """Return whether two frames have the same bits of the same types, on top of PyTorch Frame's."""
    if found != wanted or list(found.feat_dict) != list(wanted.feat_dict):
        return False
    for kind, values in found.feat_dict.items():
        other = wanted.feat_dict[kind]
        if type(values) is not type(other):
            return False
        for name in ("values", "offset") if hasattr(values, "offset") else ("",):
            a, b = (getattr(one, name) if name else one for one in (values, other))
            if a.dtype != b.dtype or not torch.equal(a.nan_to_num(7), b.nan_to_num(7)):
                return False
    return True


def check_rows(batch: HeteroData, graph: HeteroData) -> None:
    """Check that a batch of `shop` has the graph's own rows, in every type that has any."""
    for name in ("user", "item"):
        store = batch[name]
        rows = int(store.pad_node_mask.sum()) if "pad_node_mask" in store else len(store.n_id)
        assert len(store.tf) == len(store.n_id)
        assert same(store.tf[torch.arange(rows)], graph[name].tf[store.n_id[:rows]]), name
    edges = batch[EDGE] if EDGE in batch.edge_types else batch["item", "rev_buys", "user"]
    rows = int(edges.pad_edge_mask.sum()) if "pad_edge_mask" in edges else len(edges.e_id)
    assert same(edges.tf[torch.arange(rows)], graph[EDGE].tf[edges.e_id[:rows]])
    assert "tf" not in batch["shop"]
    assert not [name for store in batch.stores for name in store if name.startswith("tf-")]
