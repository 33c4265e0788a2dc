import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import is_label_edge_type
from gigl_loader.errors import ConfigError, ProtocolError
from gigl_loader.partitioning.split_links import split_links
from gigl_loader.sampler.anchors import anchor_sampler
from gigl_loader.sampler.plan import SamplingPlan
from gigl_loader.testing import as_worker_gets
from tests.loader.link.link_reference import (
    BUYS,
    KNOWS,
    LIKES,
    REV_BUYS,
    E,
    LinkGraph,
    N,
    check,
    check_edges,
    check_labels,
    check_nodes,
    collate,
    columns,
    edge_store,
    expect,
    link_graphs,
    sample,
    shop,
)
from tests.support import glt
from tests.support.draws import examples

SMALL = settings(max_examples=examples(40), derandomize=True)


def _shop() -> LinkGraph:
    """Users 0-5, items 0-6: user 4 has no edge, user 5 no label, item 6 nothing at all."""
    buys = [(0, 0), (0, 1), (1, 1), (2, 2), (2, 2), (3, 0), (5, 5), (1, 3)]
    return LinkGraph(
        {"user": 6, "item": 7},
        {
            BUYS: buys,
            REV_BUYS: [(item, user) for user, item in buys],
            KNOWS: [(0, 1), (1, 0), (3, 3), (2, 5)],
        },
        {BUYS: ([(0, 1), (0, 4), (2, 2), (4, 3), (0, 4)], [(0, 6), (2, 0)])},
    )


def _ring() -> LinkGraph:
    edges = [(i, (i + 1) % 8) for i in range(8)] + [(3, 3), (0, 1)]
    return LinkGraph({N: 9}, {E: edges}, {E: ([(0, 1), (0, 5), (2, 0)], [(0, 4), (3, 2)])})


def _all(graph, hops=2):
    return {edge_type: (-1,) * hops for edge_type in graph.edges}


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_a_batch_that_can_be_checked_by_hand(edge_dir) -> None:
    graph = _shop()
    datasets = graph.partitions(edge_dir=edge_dir)
    batch = collate(sample(datasets, [0, 4, 5], [BUYS], _all(graph, 1)), datasets[0], [BUYS])
    assert batch["user"].n_id[:3].tolist() == [0, 4, 5]  # anchors first
    assert batch["item"].n_id[:4].tolist() == [1, 4, 3, 6]  # positives, then the negative
    assert {a: row.tolist() for a, row in batch.y_positive.items()} == {0: [0, 1, 1], 1: [2], 2: []}
    assert {a: row.tolist() for a, row in batch.y_negative.items()} == {0: [3], 1: [], 2: []}
    assert batch["item"].num_sampled_nodes == [4, 2]  # items 0 and 5 are bought by anchors
    # user 1 buys item 1 and is known by 0; user 2 knows 5, which only "in" follows
    assert batch["user"].num_sampled_nodes == [3, 2 if edge_dir == "in" else 1]
    assert batch["user"].batch.tolist() == [0, 4, 5]
    assert batch["user"].batch_size == 3


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("graph", [_shop(), _ring()], ids=["shop", "ring"])
def test_anchors_labels_and_all_their_neighbourhoods(graph, count, edge_dir) -> None:
    supervision = list(graph.labels)
    datasets = graph.partitions(count, edge_dir=edge_dir)
    for hops in (1, 2):
        for anchors in ([0, 2, 5], [4], [2, 0, 2], [3, 3]):  # repeated, isolated, unlabeled
            message = sample(datasets, anchors, supervision, _all(graph, hops), with_edge=True)
            expected = expect(graph, anchors, supervision, _all(graph, hops), edge_dir=edge_dir)
            for as_edge_index in (False, True):
                batch = collate(message, datasets[0], supervision, as_edge_index=as_edge_index)
                check(batch, graph, expected, supervision, edge_dir=edge_dir)


@given(
    link_graphs(),
    st.lists(st.integers(0, 7), min_size=1, max_size=5),
    st.sampled_from(["in", "out"]),
    st.integers(1, 3),
    st.booleans(),
)
@SMALL
def test_exactly_what_plain_python_expects(graph, anchors, edge_dir, count, exclude) -> None:
    supervision = list(graph.labels)
    anchors = [a % graph.num_nodes[supervision[0][0]] for a in anchors]
    excluded = tuple(graph.edges) if exclude else ()
    datasets = graph.partitions(count, edge_dir=edge_dir)
    message = sample(
        datasets,
        anchors,
        supervision,
        _all(graph),
        with_edge=True,
        exclude=excluded,
        where=count - 1,
    )
    expected = expect(graph, anchors, supervision, _all(graph), edge_dir=edge_dir, exclude=excluded)
    batch = collate(message, datasets[0], supervision)
    check(batch, graph, expected, supervision, edge_dir=edge_dir)


@given(
    link_graphs(),
    st.lists(st.integers(0, 7), min_size=1, max_size=5),
    st.sampled_from(["in", "out"]),
    st.integers(0, 2**31),
    st.booleans(),
)
@SMALL
def test_nothing_leaks_whatever_is_drawn(graph, anchors, edge_dir, epoch, replace) -> None:
    supervision = list(graph.labels)
    anchors = [a % graph.num_nodes[supervision[0][0]] for a in anchors]
    fanouts = {edge_type: (2, 1) for edge_type in graph.edges}
    messages = []
    for count in (1, 2):
        datasets = graph.partitions(count, edge_dir=edge_dir)
        messages.append(
            sample(
                datasets,
                anchors,
                supervision,
                fanouts,
                with_edge=True,
                replace=replace,
                exclude=tuple(graph.edges),
                epoch=epoch,
            )
        )
    assert messages[0].keys() == messages[1].keys()
    for name, value in messages[0].items():  # the same from any number of partitions
        assert torch.equal(value, messages[1][name]), name
    batch = collate(messages[0], datasets[0], supervision)
    check_labels(batch, graph, expect(graph, anchors, supervision, _all(graph)), supervision)
    for name in graph.num_nodes:
        check_nodes(batch[name] if graph.heterogeneous else batch, graph, name)
    gone = _supervised(graph, anchors)
    for edge_type in graph.edges:
        check_edges(batch, graph, edge_type, edge_dir)  # every edge is one that passes messages
        assert not gone & _directed(batch, graph, edge_type, edge_dir)
    if graph.heterogeneous:
        assert not any(map(is_label_edge_type, batch.edge_types))


def _supervised(graph, anchors):
    """Return the links that the batch is to predict, as edges in both directions."""
    found = set()
    for (src, _, dst), (positives, _) in graph.labels.items():
        for anchor, label in positives:
            if anchor in anchors:
                found |= {(src, anchor, dst, label), (dst, label, src, anchor)}
    return found


def _directed(batch, graph, edge_type, edge_dir):
    ids = edge_store(batch, graph, edge_type, edge_dir).e_id.tolist()
    ends = (graph.edges[edge_type][i] for i in ids)
    return {(edge_type[0], src, edge_type[2], dst) for src, dst in ends}


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_own_supervision_is_left_out_and_nothing_else(edge_dir) -> None:
    graph = _shop()
    dataset = graph.partitions(edge_dir=edge_dir)
    anchors = [2, 0, 2]
    kept = sample(dataset, anchors, [BUYS], _all(graph), with_edge=True)
    without = sample(
        dataset, anchors, [BUYS], _all(graph), with_edge=True, exclude=(BUYS, REV_BUYS)
    )
    one_way = sample(dataset, anchors, [BUYS], _all(graph), with_edge=True, exclude=(BUYS,))
    batches = [collate(message, dataset[0], [BUYS]) for message in (kept, without, one_way)]
    ids = [
        {name: set(edge_store(batch, graph, name, edge_dir).e_id.tolist()) for name in graph.edges}
        for batch in batches
    ]
    # 0 -> 1 is edge 1; 2 -> 2 is there twice, as edges 3 and 4; both are supervision of the batch
    for edge_type in (BUYS, REV_BUYS):
        assert {1, 3, 4} <= ids[0][edge_type]
        assert not {1, 3, 4} & ids[1][edge_type]
    assert not {1, 3, 4} & ids[2][BUYS]
    assert {1, 3, 4} <= ids[2][REV_BUYS]
    assert 0 in ids[1][BUYS]  # 0 -> 0 is no supervision, and stays


@given(link_graphs(), st.lists(st.integers(0, 7), min_size=1, max_size=5))
@SMALL
def test_labels_from_the_input_give_the_same_batch(graph, anchors) -> None:
    supervision = list(graph.labels)
    anchors = [a % graph.num_nodes[supervision[0][0]] for a in anchors]
    fanouts = {edge_type: (2, 2) for edge_type in graph.edges}
    datasets = graph.partitions(2)
    read = sample(datasets, anchors, supervision, fanouts)
    given_labels = columns(graph, anchors, supervision)
    passed = sample(datasets, anchors, supervision, fanouts, from_input=given_labels)
    assert read.keys() == passed.keys()
    for name, value in read.items():
        assert torch.equal(value, passed[name]), name


def test_twenty_edge_types_fanout_zero_and_a_type_without_features() -> None:
    relations = [("a", f"r{i}", "b") for i in range(10)] + [("b", f"s{i}", "a") for i in range(10)]
    edges = {t: [(i % 5, (i * (1 + n)) % 5) for i in range(6)] for n, t in enumerate(relations)}
    graph = LinkGraph(
        {"a": 5, "b": 5, "lonely": 3}, edges, {relations[0]: ([(0, 1), (1, 4)], None)}, {"b"}
    )
    fanouts = {edge_type: (-1, -1) for edge_type in edges}
    fanouts[relations[3]] = (0, 0)
    fanouts[relations[12]] = (-1, 0)
    for edge_dir in ("in", "out"):
        datasets = graph.partitions(2, edge_dir=edge_dir)
        message = sample(datasets, [1, 0, 3], relations[:1], fanouts, with_edge=True)
        batch = collate(message, datasets[0], relations[:1])
        expected = expect(graph, [1, 0, 3], relations[:1], fanouts, edge_dir=edge_dir)
        check(batch, graph, expected, relations[:1], edge_dir=edge_dir)
        assert len(batch.edge_types) == 20
        assert "y_negative" not in batch
        assert batch["lonely"].x.shape == (0, 2)  # a type that was not reached
        assert batch["lonely"].x.dtype == torch.float32
        assert batch["lonely"].n_id.numel() == 0
        zero = edge_store(batch, graph, relations[3], edge_dir)
        assert zero.edge_index.shape == (2, 0)
        assert zero.edge_attr.shape == (0, 2)
        assert zero.num_sampled_edges == [0, 0]


def test_several_supervision_types_and_a_type_that_passes_no_messages() -> None:
    graph = _shop()
    graph.labels[KNOWS] = ([(0, 3), (2, 0)], None)
    graph.labels[LIKES] = ([(0, 6)], [(4, 6), (4, 5)])  # only supervision: there are no such edges
    datasets = graph.partitions(2)
    supervision = [BUYS, KNOWS, LIKES]
    message = sample(datasets, [0, 2, 4], supervision, _all(graph), with_edge=True)
    batch = collate(message, datasets[0], supervision)
    check(batch, graph, expect(graph, [0, 2, 4], supervision, _all(graph)), supervision)
    assert set(batch.y_positive) == {BUYS, KNOWS, LIKES}
    assert set(batch.y_negative) == {BUYS, LIKES}


def test_weights_are_those_of_the_edge_wherever_it_lies() -> None:
    graph = _shop()  # edges 0, 3, 6 weigh nothing
    fanouts = {edge_type: (2,) for edge_type in graph.edges}
    for count in (1, 2):
        message = sample(
            graph.partitions(count), [0, 2, 5], [BUYS], fanouts, with_edge=True, with_weight=True
        )
        for edge_type in graph.edges:
            ids = message["__".join(edge_type) + ".e_id"]
            assert not bool((ids % 3 == 0).any())
    assert message["user__buys__item.e_id"].numel()


def test_a_batch_of_no_anchor_with_a_label() -> None:
    graph = _shop()
    dataset = graph.partitions()
    batch = collate(
        sample(dataset, [5, 1], [BUYS], _all(graph)), dataset[0], [BUYS], as_edge_index=True
    )
    assert batch.y_positive.shape == batch.y_negative.shape == (2, 0)
    assert batch.y_positive.dtype == torch.int64


def test_a_sampler_without_positives_says_so() -> None:
    graph = _shop()
    dataset = graph.partitions()[0]
    plan = SamplingPlan(input_type="user", fanouts=_all(graph), seed=1)
    assert anchor_sampler(as_worker_gets(dataset.view()), plan, None, supervision=[BUYS])
    with pytest.raises(ProtocolError, match="no label edges"):
        sample([dataset], [0], [LIKES], _all(graph))
    message = sample([dataset], [0], [BUYS], _all(graph))
    with pytest.raises(ConfigError, match="needs the roots"):
        collate(message, dataset, [LIKES])


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("graph", [_shop(), _ring()], ids=["shop", "ring"])
def test_a_plain_glt_dataset_gives_the_same(graph, edge_dir) -> None:
    ours, supervision = graph.partitions(edge_dir=edge_dir)[0], list(graph.labels)
    theirs = glt.DistDataset(1, 0, edge_dir=edge_dir)
    for name in ("graph", "node_features", "edge_features", "node_labels", "node_pb", "edge_pb"):
        setattr(theirs, name, getattr(ours, name))
    messages = [
        sample([dataset], [2, 0], supervision, _all(graph), with_edge=True)
        for dataset in (ours, DistDataset.wrap(theirs))
    ]
    masks = {name for name in messages[0] if name.endswith("@node:train_mask")}
    assert masks, "which GLT's class has no place for"
    assert messages[0].keys() - masks == messages[1].keys()
    for name, value in messages[1].items():
        assert torch.equal(value, messages[0][name]), name


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_held_out_links_are_in_no_batch(edge_dir) -> None:
    graph = shop()
    splits = split_links(graph.to_pyg(), BUYS, num_val=0.3, num_test=0.3, seed=2)
    dataset = DistDataset.from_pyg(splits.data, supervision=splits.supervision, edge_dir=edge_dir)
    held_out = {tuple(link) for s in (splits.val, splits.test) for link in s.links.t().tolist()}
    assert len(held_out) > 10
    for split in (splits.train, splits.val, splits.test):
        supervision, anchors = [split.edge_type], split.anchors.tolist()
        message = sample([dataset], anchors, supervision, _all(graph), with_edge=True)
        batch = collate(message, dataset, supervision, as_edge_index=True)
        users, items = (batch[name].n_id for name in ("user", "item"))
        labels = zip(
            users[batch.y_positive[0]].tolist(), items[batch.y_positive[1]].tolist(), strict=True
        )
        assert sorted(labels) == sorted(map(tuple, split.links.t().tolist()))
        for edge_type in (BUYS, REV_BUYS):  # there are others between users and items
            store = edge_store(batch, graph, edge_type, edge_dir)
            walks_from_user = (edge_type == BUYS) == (edge_dir == "in")
            user, item = store.edge_index if walks_from_user else store.edge_index.flip(0)
            assert user.numel()
            found = zip(users[user].tolist(), items[item].tolist(), strict=True)
            assert held_out.isdisjoint(found)
