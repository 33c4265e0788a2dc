"""Tokens: a sequence of nodes for each seed, which no other seed of the batch changes."""

import time
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from gigl_loader import (
    ConfigError,
    CustomSamplerOptions,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    FeaturePartitionData,
    GraphPartitionData,
    PartitionOutput,
    PPRSamplerOptions,
    TokenOptions,
    WrongTypeError,
)
from gigl_loader.batch.message import TOKENS
from gigl_loader.loader.epochs.epoch import LoaderStats
from gigl_loader.sampler.rows.reader import GraphReader
from gigl_loader.testing import check_same_batches
from tests.support import token_reference as reference

DAY = 86_400
ONE: dict[str, Any] = {"num_workers": 0, "seed": 3}
ORDERS = ("hop", "time", "random")


def shop() -> HeteroData:
    """Return customers, articles and transactions with times, 8 nodes."""
    data = HeteroData()
    for kind, name in enumerate(("article", "customer", "trans")):
        count = 4 if name == "trans" else 2
        data[name].x = 10.0 * kind + torch.arange(count)[:, None]
    data["trans"].time = torch.tensor([1, 3, 4, 8]) * DAY
    for name, ends in (("customer", [0, 0, 1, 0]), ("article", [0, 1, 0, 0])):
        index = torch.stack([torch.arange(4), torch.tensor(ends)])
        data["trans", f"f2p_{name}_id", name].edge_index = index
        data[name, f"rev_f2p_{name}_id", "trans"].edge_index = index.flip(0)
    return data


def shop_loader(tokens: TokenOptions, seeds: Any = (1, 0), days: Any = (5, 9), **how: Any) -> Any:
    given_: dict[str, Any] = {"batch_size": 2, "time_attr": "time", **ONE, **how}
    times = torch.tensor(days) * DAY
    ids = ("customer", torch.tensor(seeds))
    return DistNeighborLoader(
        DistDataset.from_pyg(shop()), [-1, -1, -1], ids, input_time=times, tokens=tokens, **given_
    )


PAIRS = [
    *[(0, 1, 2, 0), (1, 1, 4, 0), (1, 2, 5, 0), (1, 3, 4, 0)],
    *[(0, 1, 0, 1), (1, 1, 0, 1), (1, 2, 0, 1), (1, 3, 0, 1)],
    *[(0, 2, 1, 2), (0, 2, 3, 2), (1, 4, 1, 2), (1, 4, 3, 2), (1, 5, 2, 2)],
    *[(0, 0, 1, 3), (1, 0, 1, 3), (1, 0, 2, 3), (1, 0, 3, 3)],
]
FIELDS: dict[str, Any] = {
    "type": ([1, 2, 0, 2], [1, 2, 2, 2, 0, 0], -1, torch.int32),
    "row": ([0, 0, 0, 1], [1, 1, 2, 3, 0, 1], -1, torch.int32),
    "hop": ([0, 1, 2, 3], [0, 1, 1, 1, 2, 2], -1, torch.int8),
    "time": ([0, DAY, 0, 4 * DAY], [0, 8 * DAY, 6 * DAY, DAY, 0, 0], 0, torch.float32),
    "has_time": ([0, 1, 0, 1], [0, 1, 1, 1, 0, 0], 0, torch.bool),
    "score": ([0] * 4, [0] * 6, 0, torch.float32),
    "mask": ([1] * 4, [1] * 6, 0, torch.bool),
}


def test_every_tensor_of_a_small_batch() -> None:
    with shop_loader(TokenOptions(6, pairs=True)) as loader:
        (batch,) = loader
    tokens = batch.tokens
    for name, (first, second, padding, dtype) in FIELDS.items():
        expected = torch.tensor([first + [padding] * 2, second]).to(dtype)
        assert torch.equal(getattr(tokens, name), expected), name
        assert getattr(tokens, name).dtype == dtype, name
    assert torch.equal(tokens.length, torch.tensor([4, 6], dtype=torch.int32))
    assert torch.equal(tokens.pair, torch.tensor(PAIRS, dtype=torch.int32))
    assert tokens.node_types == ("article", "customer", "trans")
    assert tokens.edge_types == tuple(sorted(shop().edge_types))
    found = {name: batch[name].n_id.tolist() for name in tokens.node_types}
    assert found == {"article": [0, 1], "customer": [1, 0], "trans": [2, 0, 1, 3]}


def test_every_tensor_without_padding() -> None:
    with shop_loader(TokenOptions(6, pairs=True, layout="varlen")) as loader:
        (batch,) = loader
    tokens = batch.tokens
    for name, (first, second, _, dtype) in FIELDS.items():
        assert torch.equal(getattr(tokens, name), torch.tensor([*first, *second]).to(dtype)), name
    assert tokens.cu_seqlens.tolist() == [0, 4, 10]
    assert tokens.cu_seqlens.dtype == torch.int32
    assert torch.equal(tokens.pair, torch.tensor(PAIRS, dtype=torch.int32))
    parts = tokens.gather(batch.x_dict).unbind()
    assert [part.flatten().tolist() for part in parts] == [[11, 22, 0, 20], [10, 20, 21, 23, 0, 1]]
    padded = tokens.padded()
    for name, (first, second, padding, dtype) in FIELDS.items():
        expected = torch.tensor([first + [padding] * 2, second]).to(dtype)
        assert torch.equal(getattr(padded, name), expected), name


def test_the_form_of_gigls_transform() -> None:
    with shop_loader(TokenOptions(6, pairs=True)) as loader:
        (batch,) = loader
    names = {"anchor_bias": ["hop_distance"], "token_input": ["hop_distance", "ppr_weight"]}
    sequences, mask, others = batch.tokens.as_gigl(batch.x_dict, **names)
    assert sequences.flatten(1).tolist() == [[11, 22, 0, 20, 0, 0], [10, 20, 21, 23, 0, 1]]
    assert torch.equal(mask, batch.tokens.mask)
    hops = torch.tensor([[0, 1, 2, 3, 0, 0], [0, 1, 1, 1, 2, 2]]).float()
    assert torch.equal(others["anchor_bias"], hops[..., None])
    assert list(others["token_input"]) == ["hop_distance", "ppr_weight"]
    assert torch.equal(others["token_input"]["hop_distance"], hops[..., None])
    assert torch.equal(others["pairwise_relation_indices"], torch.tensor(PAIRS))
    assert others["pairwise_bias"] is others["pairwise_nonmissing_indices"] is None
    # numbered by the given list, those of other types left out
    chosen = [batch.tokens.edge_types[3], ("a", "b", "c"), batch.tokens.edge_types[0]]
    _, _, others = batch.tokens.as_gigl(batch.x_dict, relations=chosen)
    expected = [(*pair[:3], 0) for pair in PAIRS[13:]] + [(*pair[:3], 2) for pair in PAIRS[:4]]
    assert torch.equal(others["pairwise_relation_indices"], torch.tensor(expected))


def test_the_form_of_relgt() -> None:
    # one padded sequence of the example, filled by its own tokens in another test
    tokens = TokenOptions(4, pairs=True)
    with shop_loader(tokens, seeds=(1, 1), days=(5, 5)) as loader:
        (batch,) = loader
    frames = {name: batch[name].n_id for name in batch.node_types}
    found = batch.tokens.as_relgt(frames)
    assert found["neighbor_types"].tolist() == [[1, 2, 0, 2]] * 2
    assert found["neighbor_indices"].tolist() == [[1, 2, 0, 0]] * 2
    assert found["neighbor_hops"].tolist() == [[0, 1, 2, 3]] * 2
    assert found["neighbor_times"].tolist() == [[0, 1, 0, 4]] * 2
    assert found["node_indices"].tolist() == [3, 3]
    assert found["grouped_indices"] == {0: [2, 6], 1: [0, 4], 2: [1, 3, 5, 7]}
    assert {name: ids.tolist() for name, ids in found["grouped_tfs"].items()} == {
        0: [0, 0],
        1: [1, 1],
        2: [2, 0, 2, 0],
    }
    assert found["flat_batch_idx"] == [0] * 4 + [1] * 4
    assert found["flat_nbr_idx"] == [0, 1, 2, 3] * 2
    assert found["batch"].tolist() == found["flat_batch_idx"]
    first = [[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]]
    expected = [ends + [end + 4 for end in ends] for ends in first]
    assert found["edge_index"].tolist() == expected
    assert found["global_idx"].tolist() == [0, 1]
    assert found["labels"] is None


def test_relgts_labels_are_the_seeds_whose_time_is_0() -> None:
    graph, times = shop(), torch.tensor([9, 9]) * DAY
    graph["trans"].y = torch.arange(4) + 5
    dataset = DistDataset.from_pyg(graph)
    options = TokenOptions(4, fill="repeat", pairs=True)
    how: dict[str, Any] = {"batch_size": 2, "time_attr": "time", "input_time": times, **ONE}
    ids = ("trans", torch.tensor([0, 3]))
    with DistNeighborLoader(dataset, [-1, -1], ids, tokens=options, **how) as loader:
        (batch,) = loader
    assert (batch.tokens.time[:, 0] / DAY).tolist() == [8, 1]
    taken = batch.tokens.as_relgt()
    assert taken["labels"].tolist() == [5, 8]
    days = taken["neighbor_times"]
    assert days[:, 0].tolist() == [0, 0]
    assert torch.equal(days[:, 1:], batch.tokens.time[:, 1:] / DAY)


def test_relgt_gets_no_padding_and_no_single_seed() -> None:
    with shop_loader(TokenOptions(6, pairs=True)) as loader:
        (batch,) = loader
    with pytest.raises(ConfigError, match=r'no mask.*TokenOptions\(fill="repeat"\)'):
        batch.tokens.as_relgt()
    with shop_loader(TokenOptions(4, pairs=True, layout="varlen")) as loader:
        (batch,) = loader
    with pytest.raises(ConfigError, match="no mask"):
        batch.tokens.as_relgt()
    with shop_loader(TokenOptions(4, pairs=True), batch_size=1) as loader:
        first, _ = loader
    with pytest.raises(ConfigError, match="fails on a batch of one seed"):
        first.tokens.as_relgt()


@pytest.mark.parametrize("layout", ["padded", "varlen"])
def test_masks_of_attention(layout: Any) -> None:
    options = TokenOptions(6, pairs=True, layout=layout)
    with shop_loader(options, seeds=(1, 0, 1), days=(5, 9, 4), batch_size=3) as loader:
        (batch,) = loader
    padded, tokens = batch.tokens.padded(), batch.tokens
    drawn = {tuple(pair[:3]) for pair in tokens.pair.tolist()}
    for kind in ("row", "type", "neighbour"):
        attends = tokens.mask_mod(kind)
        for s in range(3):
            length = int(padded.length[s])
            for q in range(6 if layout == "padded" else length):
                real = [
                    k
                    for k in range(length)
                    if q < length and _attends(kind, padded, drawn, s, q, k)
                ]
                places = range(6 if layout == "padded" else length)
                begin = 0 if layout == "padded" else int(tokens.cu_seqlens[s])
                at = [torch.tensor(begin + one) for one in (q, *places)]
                found = [k for k in places if bool(attends(torch.tensor(s), 0, at[0], at[k + 1]))]
                assert found == (real or [q]), (kind, s, q)
    other = tokens.mask_mod("type")
    if layout == "varlen":  # never across sequences
        assert not other(torch.tensor(0), 0, torch.tensor(0), tokens.cu_seqlens[1])


def _attends(kind: str, tokens: Any, drawn: Any, s: int, q: int, k: int) -> bool:
    if kind == "neighbour":
        return (s, q, k) in drawn
    same = tokens.type[s, q] == tokens.type[s, k]
    return bool(same and (kind == "type" or tokens.row[s, q] == tokens.row[s, k]))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_takes_the_mask() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    with shop_loader(TokenOptions(6, pairs=True)) as loader:
        (batch,) = loader
    x = torch.randn(2, 1, 6, 16)
    block = batch.tokens.block_mask("neighbour")
    found = flex_attention(x, x, x, block_mask=block)
    dense = torch.zeros(2, 6, 6, dtype=torch.bool)
    for s, q, k, _ in PAIRS:
        dense[s, q, k] = True
    dense |= torch.diag_embed(~dense.any(-1))
    expected = torch.nn.functional.scaled_dot_product_attention(x, x, x, dense[:, None])
    torch.testing.assert_close(found, expected)


@st.composite
def graphs(draw: st.DrawFn) -> HeteroData:
    data = HeteroData()
    sizes = {name: draw(st.integers(1, 5)) for name in "abc"}
    for name, size in sizes.items():
        data[name].x = torch.arange(size).float()[:, None]
        if name != "b":
            # one time each: rows are then in one order
            times = draw(st.permutations(range(10)))
            data[name].time = torch.tensor(times[:size])
    for src, relation, dst in (
        ("a", "to", "b"),
        ("b", "of", "a"),
        ("c", "in", "a"),
        ("a", "has", "c"),
        ("c", "by", "c"),
    ):
        ends = st.tuples(st.integers(0, sizes[src] - 1), st.integers(0, sizes[dst] - 1))
        edges = draw(st.lists(ends, max_size=9))
        data[src, relation, dst].edge_index = (
            torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T
        )
    return data


@settings(max_examples=60)
@given(
    graphs(),
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.sampled_from(ORDERS),
    st.integers(1, 12),
    st.integers(1, 5),
    st.booleans(),
    st.data(),
)
def test_as_in_plain_python(
    graph: HeteroData,
    days: list[int],
    order: Any,
    most: int,
    batch_size: int,
    last: bool,
    data: st.DataObject,
) -> None:
    seeds = [data.draw(st.integers(0, graph["a"].x.size(0) - 1)) for _ in days]
    # the last ones by time are known, of neighbours with times
    some = [2, 2, 1] if last else [-1, -1, -1]
    fanouts = {name: some if "time" in graph[name[0]] else [-1] * 3 for name in graph.edge_types}
    how: dict[str, Any] = {"temporal_strategy": "last"} if last else {}
    dataset = DistDataset.from_pyg(graph)

    def batches_of(**form: Any) -> list[Any]:
        walk: dict[str, Any] = {"walk_length": 2, "with_degree": True}
        loader = DistNeighborLoader(
            dataset,
            fanouts,
            ("a", torch.tensor(seeds)),
            batch_size=batch_size,
            time_attr="time",
            input_time=torch.tensor(days),
            tokens=TokenOptions(most, order=order, pairs=True, **walk, **form),
            **ONE,
            **how,
        )
        with loader:
            return list(loader)

    batches = batches_of()
    for batch, other in zip(batches, batches_of(layout="varlen"), strict=True):
        other.tokens = other.tokens.padded()
        check_same_batches([batch], [other])
    for batch, other in zip(batches, batches_of(fill="repeat"), strict=True):
        for sequence in range(batch.tokens.num_sequences):
            _check_filled(batch, other, sequence, most)
    at = 0
    for batch in batches:
        between = {name: set() for name in batch.edge_types}  # type: ignore[var-annotated]
        for sequence in range(batch.tokens.num_sequences):
            expected = reference.tokens_of(
                graph, ("a", seeds[at]), days[at], fanouts, most=99, order=order
            )
            found = reference.read(batch, sequence)
            if order == "random":
                assert found["node"][0] == expected.nodes[0]
                assert set(found["node"]) <= set(expected.nodes)
                assert len(set(found["node"])) == len(found["node"])
                assert len(found["node"]) == min(most, len(expected.nodes))
                expected.nodes = found["node"]
            expected.nodes = expected.nodes[:most]
            _same_sequence(batch, sequence, found, expected)
            for relation, query, key in expected.pairs():
                name = batch.tokens.edge_types[relation]
                between[name].add((found["row"][key], found["row"][query]))
            at += 1
        _check_batch(batch, between)


def _check_filled(bare: Any, filled: Any, sequence: int, most: int) -> None:
    """Check a sequence that is filled up by what it has without that."""
    own, found = reference.read(bare, sequence), reference.read(filled, sequence)
    size = len(own["node"])
    assert len(found["node"]) == most
    assert found["node"][:size] == own["node"]
    # a seed with others is not repeated
    sources = [own["node"].index(node, min(1, size - 1)) for node in found["node"][size:]]
    places = [*range(size), *sources]
    for name in ("row", "hop", "time", "has_time", "score"):
        assert found[name] == [own[name][at] for at in places]
    pairs = own["pair"]
    expected = {
        (relation, q, k)
        for q in range(most)
        for k in range(most)
        for relation, query, key in pairs
        if (places[q], places[k]) == (query, key)
    }
    assert found["pair"] == sorted(expected)
    taken = torch.tensor(places)
    assert torch.equal(filled.tokens.walk[sequence], bare.tokens.walk[sequence][taken])
    assert torch.equal(filled.tokens.degree[sequence], bare.tokens.degree[sequence][taken])


def _same_sequence(batch: Any, sequence: int, found: Any, expected: reference.Sequence_) -> None:
    assert found["node"] == expected.nodes
    assert found["hop"] == [expected.hop[node] for node in expected.nodes]
    ages = [expected.ages[node] for node in expected.nodes]
    seed_age = ages[0]
    assert found["has_time"] == [age is not None for age in ages]
    assert found["time"] == [max(seed_age or 0, 0), *(age or 0 for age in ages[1:])]
    assert min(found["time"]) >= 0
    assert found["pair"] == list(expected.pairs())
    size = len(expected.nodes)
    landing = expected.walk(2)
    torch.testing.assert_close(batch.tokens.walk[sequence, :size], torch.tensor(landing))
    joined = [
        {q + k - at for _, q, k in expected.pairs() if at in (q, k) and q != k}
        for at in range(size)
    ]
    assert batch.tokens.degree[sequence, :size].tolist() == [len(others) for others in joined]
    assert not batch.tokens.walk[sequence, size:].any()


def _check_batch(batch: Any, between: dict[Any, set[tuple[int, int]]]) -> None:
    """Check that a batch has the nodes that are tokens, each once, and the edges between them."""
    tokens = batch.tokens
    for number, name in enumerate(tokens.node_types):
        rows = tokens.row[tokens.type == number].unique()
        assert torch.equal(rows, torch.arange(batch[name].n_id.numel()).int())
        assert batch[name].n_id.unique().numel() == batch[name].n_id.numel()
        assert torch.equal(batch[name].x[:, 0].long(), batch[name].n_id)
    for name, expected in between.items():
        edges = list(zip(*batch[name].edge_index.tolist(), strict=True))
        assert len(edges) == len(set(edges))
        assert set(edges) == expected


@pytest.mark.parametrize("order", ORDERS)
def test_filled_by_a_seeds_own_tokens(order: Any) -> None:
    data = shop()
    data["customer"].x = torch.tensor([[10.0], [11.0], [12.0]])  # the last one bought nothing
    encodings: dict[str, Any] = {"walk_length": 2, "with_degree": True}
    options = TokenOptions(9, order=order, fill="repeat", pairs=True, **encodings)
    times = torch.tensor([5, 9, 9]) * DAY
    loader = DistNeighborLoader(
        DistDataset.from_pyg(data),
        [-1, -1, -1],
        ("customer", torch.tensor([1, 0, 2])),
        batch_size=3,
        time_attr="time",
        input_time=times,
        tokens=options,
        **ONE,
    )
    with loader:
        first, second = next(iter(loader)), next(iter(loader))
    plain = TokenOptions(9, order=order, pairs=True, **encodings)
    with shop_loader(plain) as others:
        (bare,) = others
    assert first.tokens.mask.all()
    assert first.tokens.length.tolist() == [9, 9, 9]
    for sequence in (0, 1):
        _check_filled(bare, first, sequence, 9)
    assert reference.read(first, 2)["node"] == [("customer", 2)] * 9, "never a stranger"
    assert not torch.equal(first.tokens.row, second.tokens.row) or order == "random", "by epoch"


def test_the_seed_is_not_among_the_repeats_of_others() -> None:
    with shop_loader(TokenOptions(90, fill="repeat")) as loader:
        (batch,) = loader
    for sequence, own in ((0, 4), (1, 7)):
        nodes = reference.read(batch, sequence)["node"]
        assert len(set(nodes[:own])) == own
        assert set(nodes[own:]) == set(nodes[1:own]), "each of the others comes again"


def random_graph() -> Data:
    """Return a graph with labels of links, whose nodes have times."""
    torch.manual_seed(0)
    return Data(
        x=torch.arange(60).float()[:, None],
        time=torch.arange(60) % 20,
        edge_index=torch.randint(0, 60, (2, 500)),
    )


def sequences(loader: Any) -> dict[Any, list[Any]]:
    """Return what is known of each sequence, by the position of its seed."""
    found = {}
    with loader:
        for batch in loader:
            for at in range(batch.tokens.num_sequences):
                read = reference.read(batch, at)
                read.pop("row")
                place = int(batch.input_id[at % batch.input_id.numel()])
                found[place, at // batch.input_id.numel()] = list(read.items())
    return found


HOW: dict[str, dict[str, Any]] = {
    "trees": {},
    "weighted": {"with_weight": True},
    "timed": {"time_attr": "time"},
    "ppr": {"sampler_options": PPRSamplerOptions(max_ppr_nodes=6, num_neighbors_per_hop=4)},
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("fill", ["pad", "repeat"])
def test_other_seeds_change_nothing(how: str, fill: Any) -> None:
    data = random_graph()
    data.edge_weight = torch.arange(500) % 4 + 1.0
    dataset, seeds = DistDataset.from_pyg(data), torch.arange(40)
    options = TokenOptions(9, order="random", fill=fill, pairs=True)
    given_: dict[str, Any] = {"tokens": options, **ONE, **HOW[how]}

    def of(ids: torch.Tensor, **more: Any) -> dict[Any, list[Any]]:
        return sequences(DistNeighborLoader(dataset, [4, 3], ids, **{**given_, **more}))

    alone = of(seeds, batch_size=1)
    assert len(alone) == 40
    assert of(seeds, batch_size=16) == of(seeds, batch_size=16, shuffle=True) == alone
    others = seeds.clone()
    others[1::2] = 59 - seeds[1::2]
    mixed = of(others, batch_size=8)
    assert all(mixed[place] == alone[place] for place in alone if place[0] % 2 == 0)


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_relations_are_numbers_of_a_batchs_edge_types(edge_dir: Any) -> None:
    graph = shop()
    del graph["article", "rev_f2p_article_id", "trans"]  # not all types have a reverse
    dataset = DistDataset.from_pyg(graph, edge_dir=edge_dir)
    seeds, tokens = ("customer", torch.tensor([0, 1])), TokenOptions(8, pairs=True)
    with DistNeighborLoader(dataset, [-1, -1], seeds, batch_size=2, tokens=tokens, **ONE) as it:
        (batch,) = it
    tokens = batch.tokens
    assert tokens.edge_types == tuple(sorted(batch.edge_types))
    between: dict[Any, set[tuple[int, int]]] = {name: set() for name in batch.edge_types}
    for s, q, k, relation in tokens.pair.tolist():
        source, _, target = name = tokens.edge_types[relation]
        assert [tokens.node_types[tokens.type[s, at]] for at in (k, q)] == [source, target]
        between[name].add((int(tokens.row[s, k]), int(tokens.row[s, q])))
    for name, expected in between.items():
        assert set(zip(*batch[name].edge_index.tolist(), strict=True)) == expected


def test_a_random_order_is_of_types_too() -> None:
    """Nodes of two types with one id are not beside each other each time."""
    apart = set()
    with shop_loader(TokenOptions(9, order="random")) as loader:
        for _ in range(8):
            for batch in loader:
                nodes = reference.read(batch, 1)["node"]
                apart.add(abs(nodes.index(("article", 0)) - nodes.index(("trans", 0))))
    assert len(apart) > 1


@pytest.mark.parametrize("ids", ["own", "of both directions"])
def test_edges_of_a_batch_by_id(ids: str) -> None:
    """Parallel edges with ids of their own stay, and so do edges of other nodes with one id."""
    torch.manual_seed(0)
    one_way = torch.randint(0, 9, (2, 60))
    index = torch.cat([one_way, one_way.flip(0)], 1)
    edge_ids = torch.arange(120) if ids == "own" else torch.arange(60).repeat(2)
    of_nodes = FeaturePartitionData(torch.arange(9.0)[:, None], torch.arange(9))
    dataset = DistDataset(rank=0, world_size=1, edge_dir="in")
    dataset.build(
        partition_output=PartitionOutput(
            torch.zeros(9, dtype=torch.int64),
            torch.zeros(120, dtype=torch.int64),
            GraphPartitionData(index, edge_ids),
            of_nodes,
            None,
            None,
            None,
        )
    )
    how: dict[str, Any] = {"batch_size": 3, "with_edge": True, **ONE}
    tokens = TokenOptions(6, pairs=True)
    with DistNeighborLoader(dataset, [-1, -1], torch.tensor([1, 5, 1]), tokens=tokens, **how) as it:
        (batch,) = it
    places = {
        (int(batch.tokens.row[s, k]), int(batch.tokens.row[s, q]))
        for s, q, k, _ in batch.tokens.pair.tolist()
    }
    rows = {node: row for row, node in enumerate(batch.n_id.tolist())}
    given_ = zip(*index.tolist(), edge_ids.tolist(), strict=True)
    expected = {(rows.get(source, -1), rows.get(target, -1), id_) for source, target, id_ in given_}
    expected = {edge for edge in expected if edge[:2] in places}
    found = list(zip(*batch.edge_index.tolist(), batch.e_id.tolist(), strict=True))
    assert len(found) == len(set(found))
    assert set(found) == expected


def test_links_and_their_negatives_have_a_sequence_for_each_end() -> None:
    dataset, pairs = DistDataset.from_pyg(random_graph()), torch.randint(0, 60, (2, 12))
    times = torch.full((12,), 15)
    loader = DistLinkNeighborLoader(
        dataset,
        [4, 3],
        pairs,
        batch_size=5,
        neg_sampling="binary",
        time_attr="time",
        edge_label_time=times,
        tokens=TokenOptions(9, pairs=True),
        **ONE,
    )
    with loader:
        for batch in loader:
            sources, destinations = batch.edge_label_index
            count = batch.input_id.numel()
            ends = [
                *[sources[:count], destinations[:count]],
                *[sources[count:], destinations[count:]],
            ]
            assert torch.equal(batch.tokens.row[:, 0].long(), torch.cat(ends))
            assert (batch.tokens.time >= 0).all(), "nothing later than its seed"
            own = batch.time[batch.tokens.row.clamp(min=0).long()]
            assert ((own <= 15) | ~batch.tokens.mask)[:, 1:].all()


@pytest.mark.parametrize("exclude", [False, True])
def test_an_anchors_positive_is_in_no_tree_of_its_own(exclude: bool) -> None:
    data = random_graph()
    anchors, labels = torch.arange(20), torch.arange(20) + 30
    data.edge_index = torch.cat([data.edge_index, torch.stack([labels, anchors])], 1)
    data.edge_index = torch.cat([data.edge_index, torch.stack([anchors, labels])], 1)
    dataset = DistDataset.from_pyg(data, supervision=torch.stack([anchors, labels]))

    def of(batch_size: int) -> list[Any]:
        loader = DistABLPLoader(
            dataset,
            [-1, -1],
            anchors,
            batch_size=batch_size,
            exclude_supervision=exclude,
            tokens=TokenOptions(200, pairs=True),
            **ONE,
        )
        with loader:
            found: list[Any] = [[], []]
            for batch in loader:
                for at in range(batch.tokens.num_sequences):
                    read = reference.read(batch, at)
                    read.pop("row")
                    found[at // batch.batch_size].append(list(read.items()))
                    nodes = [node for _, node in read["node"]]
                    edges = {(nodes[q], nodes[k]) for _, q, k in read["pair"]}
                    anchor = nodes[0] if nodes[0] < 20 else nodes[0] - 30
                    joined = {(anchor, anchor + 30), (anchor + 30, anchor)}
                    assert bool(edges & joined) != exclude
            return found

    assert of(1) == of(7), "the positives of other anchors change nothing"


def test_two_times_of_one_seed_have_tokens_of_their_own() -> None:
    """RelGT's files have those of the latest time for both."""
    with shop_loader(TokenOptions(9), seeds=(0, 0), days=(2, 9)) as loader:
        (batch,) = loader
    early, late = (reference.read(batch, at) for at in (0, 1))
    assert [node for node in early["node"] if node[0] == "trans"] == [("trans", 0)]
    assert ("trans", 3) in late["node"]
    assert max(early["time"]) == DAY


@pytest.mark.parametrize("order", ORDERS)
def test_a_time_is_read_once(order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, fetch = [], GraphReader.fetch

    def noted(reader: GraphReader, kind: str, name: Any, ids: Any, *rest: Any) -> Any:
        if kind == "node_attributes":
            asked.append((name, ids.tolist()))
        return fetch(reader, kind, name, ids, *rest)

    monkeypatch.setattr(GraphReader, "fetch", noted)
    graph = shop()
    seeds = {"seeds": (1, 0, 0), "days": (5, 9, 9), "batch_size": 3}
    loader = shop_loader(TokenOptions(6, order=order), **seeds)
    with loader:
        (batch,) = loader
    assert [name for name, _ in asked] == [("trans", "time")]
    ((_, ids),) = asked
    assert len(ids) == len(set(ids))
    assert set(batch["trans"].n_id.tolist()) <= set(ids)
    assert torch.equal(batch["trans"].time, graph["trans"].time[batch["trans"].n_id])


def test_a_seed_without_neighbours_gets_no_strangers() -> None:
    """RelGT's tokeniser takes nodes of any time for it."""
    with shop_loader(TokenOptions(4, fill="repeat"), seeds=(1, 1), days=(2, 5)) as loader:
        (batch,) = loader
    assert reference.read(batch, 0)["node"] == [("customer", 1)] * 4


def test_a_later_row_of_another_seed_is_not_taken() -> None:
    """GiGL's transform takes it, as it looks at the edges of the whole batch."""
    with shop_loader(TokenOptions(9)) as loader:
        (batch,) = loader
    assert ("trans", 3) not in reference.read(batch, 0)["node"]
    assert ("trans", 3) in reference.read(batch, 1)["node"]


PUSH = PPRSamplerOptions(eps=1e-3, max_ppr_nodes=20, num_neighbors_per_hop=1000)


def _check_scored(graph: Any, seeds: Any, most: int) -> None:
    """Check the tokens of a batch against its PPR edges and the edges of the graph."""
    typed = isinstance(graph, HeteroData)
    ids = seeds[1] if typed else seeds
    loader = DistNeighborLoader(
        DistDataset.from_pyg(graph),
        [1],
        seeds,
        batch_size=ids.numel(),
        sampler_options=PUSH,
        tokens=TokenOptions(most, order="score", pairs=True),
        **ONE,
    )
    with loader:
        (batch,) = loader
    tokens = batch.tokens
    stores = [batch[e] for e in batch.edge_types if e[1] == "ppr"] if typed else [batch]
    names = [e[2] for e in batch.edge_types if e[1] == "ppr"] if typed else [tokens.node_types[0]]
    kind = tokens.node_types.index(seeds[0]) if typed else 0
    for sequence in range(ids.numel()):
        root = int(tokens.row[sequence, 0])
        scored = []
        for name, store in zip(names, stores, strict=True):
            number = tokens.node_types.index(name)
            for source, row, (score, near) in zip(
                *store.edge_index.tolist(), store.edge_attr.tolist(), strict=True
            ):
                if source == root and (number, row) != (kind, root):
                    scored.append((-score, number, row, round(1 / near - 1)))
        scored.sort(key=lambda one: one[:2])
        found = reference.read(batch, sequence)
        assert found["type"][1:] == [number for _, number, _, _ in scored][: most - 1]
        assert found["hop"][1:] == [hop for *_, hop in scored][: most - 1]
        assert found["score"][1:] == [-score for score, *_ in scored][: most - 1]
        assert all(a >= b for a, b in pairwise(found["score"][1:]))
        _, _, others = tokens.as_gigl(_rows(batch), token_input=["ppr_weight"])
        weights = others["token_input"]["ppr_weight"][sequence, :, 0]
        assert weights[0] == 0 < found["score"][0]
        assert weights[1 : len(found["score"])].tolist() == found["score"][1:]
        edges = {
            (relation, q, k)
            for relation, name in enumerate(tokens.edge_types)
            for k, q in _edges_among(graph, name, found["node"])
        }
        assert set(found["pair"]) <= edges
        assert {one for one in edges if one[1] == 0} == {p for p in found["pair"] if p[1] == 0}


def test_ppr_tokens_are_the_edges_of_the_batch() -> None:
    torch.manual_seed(1)
    _check_scored(random_graph(), torch.tensor([5, 7, 5]), 12)


@settings(max_examples=60)
@given(graphs(), st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(1, 12))
def test_ppr_tokens_of_several_types_are_the_edges_of_the_batch(
    graph: HeteroData, seeds: list[int], most: int
) -> None:
    for name in "ac":
        del graph[name].time
    size = graph["a"].x.size(0)
    _check_scored(graph, ("a", torch.tensor([seed % size for seed in seeds])), most)


@pytest.mark.parametrize(
    ("order", "hops"), [("hop", [0, 1, 1, 1, 1, 2]), ("score", [0, 2, 1, 1, 1, 1])]
)
def test_ppr_tokens_by_hop_or_by_score(order: Any, hops: list[int]) -> None:
    # four neighbours of node 0 lead to node 5, whose score is then more than that of each
    index = torch.tensor([[1, 2, 3, 4, 5, 5, 5, 5], [0, 0, 0, 0, 1, 2, 3, 4]])
    dataset = DistDataset.from_pyg(Data(x=torch.ones(6, 1), edge_index=index))
    how: dict[str, Any] = {"batch_size": 1, "sampler_options": PPRSamplerOptions(), **ONE}
    tokens = TokenOptions(6, order=order)
    with DistNeighborLoader(dataset, [1], torch.tensor([0]), tokens=tokens, **how) as loader:
        (batch,) = loader
    assert batch.tokens.hop[0].tolist() == hops


def test_ppr_pairs_are_of_the_channels_that_reached_a_token() -> None:
    graph = shop()
    del graph["trans"].time
    # order 3 is reached by its article alone, though its customer is reached, too
    by_customer = graph["trans", "f2p_customer_id", "customer"]
    by_customer.edge_index = by_customer.edge_index[:, :3]
    names = sorted(graph.edge_types)
    channels = [[e for e in names if "article" in e], [e for e in names if "customer" in e]]
    ratios = {tuple(channel): 0.5 for channel in channels}
    options = PPRSamplerOptions(eps=1e-4, max_ppr_nodes=20, typed_channel_ratios=ratios)
    loader = DistNeighborLoader(
        DistDataset.from_pyg(graph),
        [1],
        ("trans", torch.tensor([0, 2, 3])),
        batch_size=3,
        sampler_options=options,
        tokens=TokenOptions(12, order="score", pairs=True),
        **ONE,
    )
    with loader:
        (batch,) = loader
    reached = {
        (seed, name, row, channel)
        for name in graph.node_types
        for seed, row, attr in zip(
            *batch["trans", "ppr", name].edge_index.tolist(),
            batch["trans", "ppr", name].edge_attr.tolist(),
            strict=True,
        )
        for channel in (0, 1)
        if attr[2 + 3 * channel + 2]
    }
    assert {channel for *_, channel in reached} == {0, 1}
    for sequence in range(3):
        found = reference.read(batch, sequence)
        root = found["row"][0]
        expected = {
            (relation, q, k)
            for relation, name in enumerate(batch.tokens.edge_types)
            for k, q in _edges_among(graph, name, found["node"])
            if (root, found["node"][q][0], found["row"][q], int(name in channels[1])) in reached
        }
        assert set(found["pair"]) == expected


def _rows(batch: Any) -> Any:
    return batch.x_dict if isinstance(batch, HeteroData) else batch.x


def _edges_among(graph: Any, name: Any, nodes: list[Any]) -> list[tuple[int, int]]:
    index = graph[name].edge_index if isinstance(graph, HeteroData) else graph.edge_index
    edges = set(zip(*index.tolist(), strict=True))
    return [
        (k, q)
        for q, (query, target) in enumerate(nodes)
        for k, (key, source) in enumerate(nodes)
        if (source, target) in edges
        and (not isinstance(graph, HeteroData) or (key, query) == (name[0], name[2]))
    ]


def test_a_token_takes_at_most_16_bytes_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    make = DistNeighborLoader._make_batch

    def noted(self: Any, msg: Any) -> Any:
        seen.append(msg)
        return make(self, msg)

    monkeypatch.setattr(DistNeighborLoader, "_make_batch", noted)
    for options, how in (
        (TokenOptions(6), {}),
        (TokenOptions(6, order="score"), {"sampler_options": PPRSamplerOptions()}),
    ):
        given_: dict[str, Any] = {"time_attr": None, **how} if how else {}
        seen.clear()
        dataset = DistDataset.from_pyg(shop())
        seeds = ("customer", torch.arange(2))
        times = {} if how else {"time_attr": "time", "input_time": torch.tensor([5, 9]) * DAY}
        with DistNeighborLoader(
            dataset, [-1, -1], seeds, batch_size=2, tokens=options, **ONE, **given_ | times
        ) as loader:
            (batch,) = loader
        (message,) = seen
        for_each = {
            name: value
            for name, value in message.items()
            if name.startswith(TOKENS) and name not in (TOKENS + "types", TOKENS + "length")
        }
        real = int(batch.tokens.length.sum())
        assert sum(value.nbytes for value in for_each.values()) <= 16 * real


def test_a_batch_moves_with_its_tokens() -> None:
    with shop_loader(TokenOptions(6, pairs=True, walk_length=1)) as loader:
        (batch,) = loader
    moved = batch.to("meta").tokens
    assert moved.row.is_meta
    assert moved.pair.is_meta
    assert moved.walk.is_meta
    assert all(ids.is_meta for ids in moved._n_id.values())
    assert repr(batch.tokens) == "Tokens(sequences=2, max_tokens=6, layout=padded)"


def test_padded_batches_have_the_same_tokens() -> None:
    dataset = DistDataset.from_pyg(random_graph())
    found = []
    for how in ({}, {"pad": True}, {"pad": {"nodes": 12, "edges": 9, "larger": "bound"}}):
        loader = DistNeighborLoader(
            dataset,
            [4, 3],
            torch.arange(20),
            batch_size=8,
            tokens=TokenOptions(9, pairs=True),
            **ONE,
            **how,
        )
        with loader:
            found.append([batch.tokens for batch in loader])
            sizes = {batch.x.size(0) for batch in loader}
            assert not how or len(sizes) <= 2
    check_same_batches(map(_as_data, found[0]), map(_as_data, found[1]))
    check_same_batches(map(_as_data, found[0]), map(_as_data, found[2]))


def _as_data(tokens: Any) -> Data:
    tokens._n_id.clear()  # with dead nodes
    return Data(tokens=tokens)


def test_a_seed_that_comes_twice_has_one_row_in_the_mask_of_seeds() -> None:
    options, seeds = TokenOptions(3), torch.tensor([5, 5, 7, 8])
    dataset = DistDataset.from_pyg(random_graph())
    how: dict[str, Any] = {"batch_size": 4, "pad": True, "tokens": options, **ONE}
    with DistNeighborLoader(dataset, [4, 3], seeds, **how) as loader:
        (batch,) = loader
    assert batch.n_id[batch.seed_mask].tolist() == [5, 7, 8]
    assert batch.n_id[batch.tokens.row[:, 0].long()].tolist() == seeds.tolist()


def test_statistics_count_tokens() -> None:
    with shop_loader(TokenOptions(6)) as loader:
        (batch,) = loader
        loader([1])
        stats = loader.stats(reset=True)
        assert stats["tokens"] == int(batch.tokens.length.sum()) == 10
        assert stats["tokens_per_s"] == pytest.approx(10 / stats["elapsed_s"])
        assert loader.stats()["tokens"] == 0
    busy = LoaderStats(batches=1, seeds=4, tokens=40, started=time.perf_counter() - 1, wait_s=0.9)
    busy.busy_s[0] = 0.9
    assert busy.summary()["verdict"].endswith("or lower num_neighbors; a seed has 10 tokens")


def test_a_state_knows_the_options_of_tokens() -> None:
    with shop_loader(TokenOptions(6)) as loader:
        state = loader.state_dict()
    with shop_loader(TokenOptions(6)) as same:
        same.load_state_dict(state)
    with (
        shop_loader(TokenOptions(7)) as other,
        pytest.raises(ConfigError, match=r"tokens.*max_tokens=6.*max_tokens=7"),
    ):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    ("given_", "match"),
    [
        ({"max_tokens": 0}, r"TokenOptions\.max_tokens must be an integer in \[1, "),
        ({"max_tokens": 2.0}, r"TokenOptions\.max_tokens must be an integer"),
        ({"max_tokens": True}, r"TokenOptions\.max_tokens must be an integer"),
        ({"max_tokens": 2**20}, r"TokenOptions\.max_tokens must be an integer"),
        ({"order": "index"}, r"TokenOptions\.order must be one of"),
        ({"fill": "stranger"}, r"TokenOptions\.fill must be one of"),
        ({"layout": "ragged"}, r"TokenOptions\.layout must be one of"),
        ({"pairs": 1}, r"TokenOptions\.pairs must be True or False"),
        ({"with_degree": None}, r"TokenOptions\.with_degree must be True or False"),
        ({"walk_length": -1}, r"TokenOptions\.walk_length must be an integer in \[0, "),
        ({"fill": "repeat", "layout": "varlen"}, r'fill="repeat" fills places'),
    ],
)
def test_wrong_options(given_: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        TokenOptions(**{"max_tokens": 4, **given_})


SIX = TokenOptions(6)


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"tokens": 6}, r"tokens must be TokenOptions\(max_tokens"),
        ({"tokens": SIX, "disjoint": True}, "disjoint=True cannot be combined with tokens"),
        (
            {"tokens": SIX, "subgraph_type": "bidirectional"},
            "subgraph_type='bidirectional' cannot be .*; give 'directional'",
        ),
        ({"tokens": SIX, "sampling_method": "labor"}, "sampling_method='labor' cannot|labor"),
        ({"tokens": SIX, "with_hop": True}, "with_hop=True cannot be combined with tokens"),
        ({"tokens": TokenOptions(6, order="score")}, 'order="score" is by PPR scores'),
        ({"tokens": TokenOptions(6, order="time")}, 'order="time" needs time_attr'),
        (
            {"tokens": TokenOptions(6, order="time"), "time_attr": "age", "input_time": [1] * 4},
            "no node has 'age'",
        ),
        (
            {"tokens": SIX, "sampler_options": PPRSamplerOptions(max_fetch_iterations=2)},
            "max_fetch_iterations",
        ),
        ({"tokens": SIX, "sampler_options": CustomSamplerOptions("a.B")}, "not by a.B"),
        ({"tokens": SIX, "transform_sampler_output": lambda out: out}, "transform_sampler_output"),
        ({"tokens": SIX, "pad": {"nodes": 12, "edges": 12}}, "tokens of a batch are not split"),
        (
            {"tokens": SIX, "time_attr": "time", "sampler_options": PPRSamplerOptions()},
            "cannot be combined with PPRSamplerOptions",
        ),
    ],
)
def test_options_that_cannot_be(how: dict[str, Any], match: str) -> None:
    data = random_graph()
    data.age = torch.arange(500) % 7
    with pytest.raises(ConfigError, match=match):
        DistNeighborLoader(
            DistDataset.from_pyg(data), [3, 2], torch.arange(4), batch_size=2, **ONE, **how
        )


def test_what_an_adapter_cannot_give_is_said() -> None:
    with shop_loader(TokenOptions(6)) as loader:
        (batch,) = loader
    tokens, rows = batch.tokens, batch.x_dict
    wide = {**rows, "trans": torch.zeros(4, 3)}
    for call, match in (
        (lambda: tokens.gather(wide), "rows of one width"),
        (lambda: tokens.gather(batch["trans"].x), "rows by node type"),
        (lambda: tokens.gather({**rows, "other": rows["trans"]}), "rows by node type"),
        (lambda: tokens.as_gigl(rows, anchor_bias=["degree"]), "no 'degree'"),
        (lambda: tokens.as_gigl(rows, relations=[]), "needs the pairs of tokens"),
        (tokens.as_relgt, "needs the pairs of tokens"),
        (lambda: tokens.mask_mod("neighbour"), "needs the pairs of tokens"),
        (lambda: tokens.mask_mod("hop"), 'kind must be "row", "type" or "neighbour"'),
    ):
        with pytest.raises(ConfigError, match=match):
            call()


def test_rows_that_are_none() -> None:
    with shop_loader(TokenOptions(6)) as loader:
        (batch,) = loader
    with pytest.raises(WrongTypeError, match="rows by node type, got NoneType"):
        batch.tokens.gather(None)


def test_rows_of_a_type_that_is_left_out_are_zeros() -> None:
    with shop_loader(TokenOptions(6)) as loader:
        (batch,) = loader
    rows = {"trans": batch["trans"].x}
    found = batch.tokens.gather(rows).flatten(1).tolist()
    assert found == [[0, 22, 0, 20, 0, 0], [0, 20, 21, 23, 0, 0]]
