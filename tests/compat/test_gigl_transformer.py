"""GiGL's transform and encoder beside our tokens, and on our batches.

With ``GIGL_REPOSITORY`` in the environment (a git directory with commit fee4ba50), their files are
read from there.
"""

import logging
import os
import subprocess
import sys
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader import DistDataset, DistNeighborLoader, PPRSamplerOptions, TokenOptions

COMMIT = "fee4ba5047cf8d066d04344690b41725a312c711"
REPOSITORY = os.environ.get("GIGL_REPOSITORY")
pytestmark = [
    pytest.mark.skipif(REPOSITORY is None, reason="GIGL_REPOSITORY names no repository of GiGL's"),
    pytest.mark.filterwarnings("ignore:Sparse"),
]
ONE: dict[str, Any] = {"num_workers": 0, "seed": 3}


class _Shaped:
    """jaxtyping's ``Int64[Tensor, "names of axes"]``."""

    def __class_getitem__(cls, item: Any) -> Any:
        return item[0]


class EdgeType(NamedTuple):
    src_node_type: str
    relation: str
    dst_node_type: str

    def tuple_repr(self) -> tuple[str, str, str]:
        return self.src_node_type, self.relation, self.dst_node_type


def _module(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(names, __path__=[])
    monkeypatch.setitem(sys.modules, name, module)
    return module


def _read(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    path = f"{COMMIT}:{name.replace('.', '/')}.py"
    show = ["git", "-C", str(REPOSITORY), "show", path]
    text = subprocess.run(show, check=True, capture_output=True, text=True).stdout
    module = _module(monkeypatch, name)
    exec(compile(text, path, "exec"), vars(module))
    return module


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of the encoder, which has the transform as a name of its own."""
    shaped = dict.fromkeys(("Bool", "Float", "Int64"), _Shaped)
    _module(monkeypatch, "jaxtyping", **shaped)
    for name in ("gigl", "gigl.src", "gigl.src.common", "gigl.src.common.types", "gigl.transforms"):
        _module(monkeypatch, name)
    types = {"NodeType": str, "EdgeType": EdgeType}
    _module(monkeypatch, "gigl.src.common.types.graph_data", **types)
    _module(monkeypatch, "gigl.common.logger", Logger=logging.getLogger)
    _read(monkeypatch, "gigl.transforms.graph_transformer")
    return _read(monkeypatch, "gigl.nn.graph_transformer")


def typed_graph() -> HeteroData:
    torch.manual_seed(0)
    data = HeteroData()
    for kind, name in enumerate("abc"):
        data[name].x = torch.stack([torch.arange(12.0), torch.full((12,), float(kind))], 1)
    for src, relation, dst in (
        ("a", "to", "b"),
        ("b", "of", "a"),
        ("c", "in", "a"),
        ("a", "x", "c"),
    ):
        data[src, relation, dst].edge_index = torch.randint(0, 12, (2, 20))
    return data


def plain_graph() -> HeteroData:
    torch.manual_seed(1)
    data = HeteroData()
    data["n"].x = torch.stack([torch.arange(30.0), torch.rand(30)], 1)
    data["n", "e", "n"].edge_index = torch.randint(0, 30, (2, 70))
    return data


def batches(graph: Any, seeds: Any, **how: Any) -> list[Any]:
    given: dict[str, Any] = {"batch_size": 1, **ONE, **how}
    with DistNeighborLoader(DistDataset.from_pyg(graph), [-1, -1], seeds, **given) as loader:
        return list(loader)


def test_the_same_sets_on_each_seeds_own_tree(theirs: Any) -> None:
    graph, options = typed_graph(), TokenOptions(40, pairs=True)
    for batch in batches(graph, ("a", torch.arange(12)), tokens=options):
        relations = [EdgeType(*name) for name in batch.tokens.edge_types]
        sequences, mask, others = theirs.heterodata_to_graph_transformer_input(
            data=batch,
            batch_size=1,
            max_seq_len=40,
            anchor_node_type="a",
            hop_distance=2,
            sampling_direction="in",
            relation_edge_types=relations,
        )
        ours, our_mask, our_others = batch.tokens.as_gigl(batch.x_dict)
        assert torch.equal(mask, our_mask)
        assert torch.equal(sequences[:, 0], ours[:, 0])
        assert torch.equal(sequences[~mask], ours[~our_mask])
        found, expected = (sorted(map(tuple, one[mask].tolist())) for one in (ours, sequences))
        assert found == expected
        pairs = "pairwise_relation_indices"
        assert _edges(ours, our_others[pairs]) == _edges(sequences, others[pairs])


def _edges(sequences: Any, pairs: Any) -> list[Any]:
    return sorted(
        (relation, *sequences[s, q].tolist(), *sequences[s, k].tolist())
        for s, q, k, relation in pairs.tolist()
    )


@pytest.mark.parametrize("mode", ["edge_type_bilinear", "edge_type_hgt"])
def test_their_encoder_gives_the_same_bits(
    theirs: Any, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    torch.manual_seed(2)
    encoder = theirs.GraphTransformerEncoder(
        {"n": 2},
        {EdgeType("n", "e", "n"): 0},
        hid_dim=16,
        out_dim=8,
        max_seq_len=40,
        relation_attention_mode=mode,
        sampling_direction="in",
    ).eval()
    transform, calls = theirs.heterodata_to_graph_transformer_input, 0
    for batch in batches(
        plain_graph(), ("n", torch.arange(30)), tokens=TokenOptions(40, pairs=True)
    ):

        def ours(data: Any, _tokens: Any = batch.tokens, **given: Any) -> Any:
            nonlocal calls
            calls += 1
            return _tokens.as_gigl({"n": data["n"].x}, relations=given["relation_edge_types"])

        with torch.no_grad():
            monkeypatch.setattr(theirs, "heterodata_to_graph_transformer_input", transform)
            expected = encoder(batch, "n")
            monkeypatch.setattr(theirs, "heterodata_to_graph_transformer_input", ours)
            assert torch.equal(encoder(batch, "n"), expected)
    assert calls == 30


@pytest.mark.parametrize("typed", [True, False])
def test_their_transform_takes_our_ppr_batches(theirs: Any, typed: bool) -> None:
    graph: Any = typed_graph()
    seeds: Any = ("a", torch.arange(12))
    if not typed:
        plain = plain_graph()
        graph = Data(x=plain["n"].x, edge_index=plain["n", "e", "n"].edge_index)
        seeds = torch.arange(30)
    options = PPRSamplerOptions(max_ppr_nodes=15, eps=1e-3)
    tokens = TokenOptions(12, order="score")
    for batch in batches(graph, seeds, batch_size=4, sampler_options=options, tokens=tokens):
        rows = batch.x_dict if typed else batch.x
        given = HeteroData()
        if typed:
            for name in batch.node_types:
                given[name].x = batch[name].x
            for name in batch.edge_types:
                given[name].edge_index = batch[name].edge_index
                given[name].edge_attr = batch[name].edge_attr[:, 0]  # the other column is near
        else:
            given["n"].x = batch.x
            given["n", "ppr", "n"].edge_index = batch.edge_index
            given["n", "ppr", "n"].edge_attr = batch.edge_attr[:, 0]
        sequences, mask, others = theirs.heterodata_to_graph_transformer_input(
            data=given,
            batch_size=batch.tokens.num_sequences,
            max_seq_len=12,
            anchor_node_type="a" if typed else "n",
            sequence_construction_method="ppr",
            anchor_based_input_attr_names=["ppr_weight"],
        )
        ours, our_mask, our_others = batch.tokens.as_gigl(rows, token_input=["ppr_weight"])
        assert torch.equal(mask, our_mask)
        assert torch.equal(sequences, ours)
        weights, our_weights = (one["token_input"]["ppr_weight"] for one in (others, our_others))
        assert torch.equal(weights, our_weights)
