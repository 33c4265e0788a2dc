"""Draws and labels on a device: the bits of the compiled kernels of the CPU."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from gigl_loader.dataset.partition.partition_view import Adjacency, TimeOrder
from gigl_loader.sampler.gpu import warp_kernels
from gigl_loader.sampler.gpu.device_graph import edge_ids_at
from gigl_loader.sampler.gpu.device_kernels import (
    DeviceDraw,
    DeviceLabels,
    TorchKernels,
    TypedPlaces,
)
from gigl_loader.sampler.gpu.warp_kernels import WarpKernels
from gigl_loader.sampler.nodes import NodeLabels, TreeLabels
from gigl_loader.sampler.plan import TreesAndTimes
from tests.sampler.gpu.device_questions import Question, draw_of, questions, view_of
from tests.sampler.gpu.device_waits import waits_counted
from tests.support.draws import examples

CPU = torch.device("cpu")
ALL: tuple[TorchKernels, ...] = (TorchKernels(CPU), WarpKernels(CPU))
each = pytest.mark.parametrize("kernels", ALL, ids=["torch", "warp"])


@settings(max_examples=examples(250), deadline=None)
@given(question=questions(), data=st.data())
def test_draws_are_those_of_the_cpu(question: Question, data: st.DataObject) -> None:
    gaps = data.draw(st.lists(st.integers(0, question.ids.size), max_size=4))
    for kernels in ALL:
        question.check(kernels, np.insert(np.zeros(question.ids.size, bool), gaps, True))


HOWS: list[dict[str, Any]] = [
    {},
    {"replace": True},
    {"with_weight": True},
    {"with_weight": True, "replace": True},
    {"method": "labor"},
    {"method": "labor", "with_weight": True},
]


@each
@pytest.mark.parametrize("how", HOWS, ids=lambda how: " ".join(map(str, how.values())) or "uniform")
def test_each_row_may_have_a_key_of_its_own(kernels: TorchKernels, how: dict[str, Any]) -> None:
    """As for batches of several ranks: one draw, and what each of them would draw alone."""
    rng = np.random.default_rng(2)
    degrees = rng.integers(0, 30, 40)
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    weights = rng.exponential(1, indptr[-1]).astype(np.float32)
    indices = np.sort(rng.integers(0, 40, indptr[-1]))
    view = view_of(Adjacency(indptr, indices, None, weights, first_edge=0), 40)
    keys = [7, 2**64 - 3, 2**63]
    alone = [
        Question(view, draw_of(5, key, **how), rng.permutation(40)[:size], None)
        for key, size in zip(keys, (40, 1, 17), strict=True)
    ]
    requests = [question.on_device(np.zeros(question.ids.size, bool)) for question in alone]
    together = kernels.draw(
        replace(
            requests[0],
            rows=torch.cat([request.rows for request in requests]),
            ids=torch.cat([request.ids for request in requests]),
            keys=torch.cat([request.keys.expand(request.rows.numel()) for request in requests]),
        )
    )
    apart = [kernels.draw(request) for request in requests]
    assert together.counts.tolist() == torch.cat([drawn.counts for drawn in apart]).tolist()
    assert together.edges.tolist() == torch.cat([drawn.edges for drawn in apart]).tolist()
    for question in alone:
        question.check(kernels, np.zeros(question.ids.size, bool))


@pytest.fixture
def short_rows_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warp_kernels, "_LONG_ROW", 2)
    monkeypatch.setattr(warp_kernels, "_PARTS", 3)
    monkeypatch.setattr(warp_kernels, "_LONG_ROWS", 4)  # others are drawn by one thread


@pytest.mark.usefixtures("short_rows_are_long")
def test_long_rows_in_parts_are_those_of_the_cpu() -> None:
    """Rows of all lengths around that of a part, with parallel edges across its end."""
    rng, kernels, few = np.random.default_rng(4), WarpKernels(CPU), np.array([49, 30, 24])
    degrees = np.concatenate([np.arange(25), rng.integers(0, 60, 25)])
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    for most in (3, 2**40):  # few neighbours: parallel edges, and so equal numbers of LABOR
        indices = rng.integers(0, most, indptr[-1])
        for start, stop in itertools.pairwise(indptr):
            indices[start:stop].sort()
        weights = rng.integers(0, 3, indices.size).astype(np.float32)
        view = view_of(Adjacency(indptr, indices, None, weights, first_edge=0), 50)
        for how in HOWS[2:]:
            for ids, fanout in itertools.product([rng.permutation(50), few], [1, 4, 30]):
                question = Question(view, draw_of(fanout, 77, **how), ids, None)
                question.check(kernels, np.zeros(ids.size, bool))


def test_a_hub_does_not_occupy_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of its row have a thread each; a graph without hubs has no further launch."""
    launched: list[tuple[str, Any]] = []
    launch = WarpKernels._launch

    def noting(self: WarpKernels, kernel: Any, threads: Any, *inputs: Any) -> None:
        launched.append((kernel.key, threads))
        launch(self, kernel, threads, *inputs)

    monkeypatch.setattr(WarpKernels, "_launch", noting)
    for degree, wanted in (
        (4096, [("draw_whole_rows", 1)]),
        (200_000, [("draw_whole_rows", 1), ("draw_long_rows", (1, 128)), ("join_long_rows", 1)]),
    ):
        indices = np.arange(degree)
        weights = np.random.default_rng(0).exponential(1, degree).astype(np.float32)
        view = view_of(Adjacency(np.array([0, degree]), indices, None, weights, first_edge=0), 1)
        draw = draw_of(15, 9, with_weight=True)
        Question(view, draw, np.array([0]), None).check(WarpKernels(CPU), np.zeros(1, bool))
        assert launched == wanted
        launched.clear()


def test_hubs_and_many_rows() -> None:
    """As many rows as a hop has, of all degrees up to 100,000; no draw is left out."""
    rng = np.random.default_rng(0)
    degrees = rng.integers(0, 200, 5000)
    degrees[:5] = [0, 1, 15, 16, 100_000]
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    indices = rng.integers(0, 5000, indptr[-1]).astype(np.int32)
    for start, stop in itertools.pairwise(indptr):
        indices[start:stop].sort()
    weights = rng.exponential(1, indices.size).astype(np.float32)
    view = view_of(Adjacency(indptr, indices, None, weights, first_edge=0), 5000)
    weighted: dict[str, Any] = {"with_weight": True}
    labor: dict[str, Any] = {"method": "labor"}
    # Torch reads as many columns of all rows as the longest one has: no test for a hub.
    for how, asked in [
        ({}, ALL),
        ({"replace": True}, ALL),
        (weighted, ALL[1:]),
        (labor, ALL[1:]),
        ({**weighted, "replace": True}, ALL[1:]),
        ({**labor, **weighted}, ALL[1:]),
    ]:
        question = Question(view, draw_of(15, 2**64 - 59, **how), rng.permutation(5000), None)
        for kernels in asked:
            question.check(kernels, np.zeros(5000, bool))


def test_edges_past_two_thousand_million(tmp_path: Path) -> None:
    """A row of 2 ** 31 + 7 edges, and one behind it: positions take more than 32 bits.

    The arrays are files with holes, of which a few pages are read.
    """
    first, second = 2**31 + 7, 50
    indptr = np.array([0, first, first + second])

    def sparse(name: str, dtype: type, values: Any) -> np.ndarray:
        made = np.memmap(tmp_path / name, dtype, "w+", shape=(first + second,))
        made[first:] = values
        return made.view(np.ndarray)

    order = sparse("order", np.int64, first + np.random.default_rng(0).permutation(second))
    view = view_of(
        Adjacency(
            indptr,
            sparse("indices", np.int32, np.arange(second) // 3),
            None,
            sparse("weights", np.float32, np.arange(second) / 9),
            first_edge=0,
        ),
        60,
        TimeOrder(order, sparse("times", np.int64, np.arange(second) // 4), is_float=False),
    )
    late = TreesAndTimes(np.zeros(1, np.int64), np.full(1, 11))
    cases: list[tuple[list[int], TreesAndTimes | None, dict[str, Any]]] = [
        ([0, 1, 2], None, {}),
        ([0, 1], None, {"replace": True}),
        ([1], None, {"with_weight": True}),
        ([1], None, {"with_weight": True, "replace": True}),
        ([1], None, {"method": "labor"}),
        ([1], late, {"timed": True}),
    ]
    for ids, asked, how in cases:
        question = Question(view, draw_of(9, 77, **how), np.array(ids), asked)
        # Torch reads all columns up to the longest row of the adjacency; here, of those asked.
        question.check(WarpKernels(CPU), np.zeros(len(ids), bool))
        question.check(TorchKernels(CPU), np.zeros(len(ids), bool), largest_degree=second)


@pytest.mark.parametrize("how", [{}, {"method": "labor"}])
def test_edges_on_the_host_are_read_there(how: dict[str, Any]) -> None:
    """On a device without values, beside the CPU: operators take tensors of one device."""
    device = torch.device("meta")
    with FakeTensorMode():
        ends, kernels = torch.zeros(50, dtype=torch.int64), TorchKernels(device)
        rows, key = (torch.zeros(count, dtype=torch.int64, device=device) for count in (8, 1))
        indptr = torch.zeros(11, dtype=torch.int64, device=device)
        view = Adjacency(indptr, ends, ends.clone(), None)
        draw = draw_of(4, 2**64 - 1, **how)
        drawn = kernels.draw(DeviceDraw(draw, view, rows, rows, key, 4, largest_degree=30))
        for found in (drawn.neighbors, edge_ids_at(view, drawn.edges, kernels)):
            assert (found.device, found.dtype, found.shape) == (device, torch.int64, (8, 4))


LARGER, LARGE, SMALL = 0x1E123456789ABC, 0xF123456789ABC, 0x123456789AB


def _twins(number: int, key: int, count: int) -> list[int]:
    """Return neighbours whose 53 bits under ``key`` are ``number``, by undoing the hash."""
    made = (_neighbor_of(number << 11 | low, key) for low in range(2048))
    return list(itertools.islice((one for one in made if one < 2**63), count))


def test_of_equal_numbers_the_earlier_position_is_drawn() -> None:
    """Two neighbours whose 53 bits are equal are made by undoing the hash; chance makes none."""
    key = 2**63 + 5
    indices = np.array([*_twins(LARGE, key, 2), *_twins(SMALL, key, 1)])
    view = view_of(Adjacency(np.array([0, 3]), indices, None, None, first_edge=0), 1)
    question = Question(view, draw_of(2, key, method="labor"), np.zeros(1, np.int64), None)
    assert question.on_cpu()[0].tolist() == [0, 2]
    for kernels in ALL:
        question.check(kernels, np.zeros(1, bool))


@pytest.mark.usefixtures("short_rows_are_long")
def test_of_equal_numbers_of_a_part_the_earlier_position_is_drawn() -> None:
    """A part's choice is in no order: the later one of two equal numbers may come first."""
    key = 2**63 + 5
    larger = _twins(LARGER, key, 6)
    indices = np.array([*_twins(SMALL, key, 1), *larger[:2], *_twins(LARGE, key, 2), *larger[2:]])
    view = view_of(Adjacency(np.array([0, 9]), indices, None, None, first_edge=0), 1)
    question = Question(view, draw_of(2, key, method="labor"), np.zeros(1, np.int64), None)
    assert question.on_cpu()[0].tolist() == [0, 3]
    question.check(WarpKernels(CPU), np.zeros(1, bool))


def _neighbor_of(bits: int, key: int) -> int:
    """Return the neighbour whose first number under ``key`` is made of ``bits``."""
    row_key = (_unmix(bits) - 0x9E3779B97F4A7C15) % 2**64
    node = (_unmix(_unmix(row_key) ^ key) - 0x9E3779B97F4A7C15) % 2**64
    return node * pow(0xD6E8FEB86659FD93, -1, 2**64) % 2**64


def _unmix(value: int) -> int:
    """Undo `runtime.compiled.mix`."""
    for shift, factor in [(31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)]:
        mixed = value
        for _ in range(3):
            value = mixed ^ (value >> shift)
        value = value * pow(factor, -1, 2**64) % 2**64
    return value


SOME_IDS = st.lists(st.integers(0, 12) | st.integers(2**40, 2**40 + 2), max_size=20)


@each
@settings(max_examples=examples(150), deadline=None)
@given(roots=st.lists(SOME_IDS, min_size=1, max_size=3), hops=st.integers(0, 4), data=st.data())
def test_labels_are_those_of_the_cpu(
    kernels: TorchKernels, roots: list[list[int]], hops: int, data: st.DataObject
) -> None:
    """Several types at once, of the same ids; places that are not used between those that are."""
    wanted = [NodeLabels() for _ in roots]
    for labels, ids in zip(wanted, roots, strict=True):
        labels.append(np.array(ids, np.int64))
    calls = [[data.draw(SOME_IDS) for _ in roots] for _ in range(hops)]
    room = [
        sum(map(len, of_type)) + data.draw(st.integers(0, 5))
        for of_type in zip(*calls, strict=True)
    ]
    found = _labels(roots, room or [0] * len(roots))
    for call in calls:
        valid = [
            np.array(data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))), bool)
            for ids in call
        ]
        _check_label(kernels, found, [np.array(ids, np.int64) for ids in call], valid, wanted)
    for at, labels in enumerate(wanted):
        known = found.keys[found.begins[at] : found.begins[at + 1]]
        assert int(found.counts[at]) == labels.count
        assert known[: labels.count].tolist() == labels.nodes.tolist()
        assert (known[labels.count :] == -1).all(), "what is unused stays so"


def _labels(roots: list[list[int]], room: list[int]) -> DeviceLabels:
    """Return labels of the roots of each type, with room for more."""
    parts = [
        torch.tensor([*ids, *[-1] * more], dtype=torch.int64)
        for ids, more in zip(roots, room, strict=True)
    ]
    begins = [0, *itertools.accumulate(map(len, parts))]
    counts = torch.tensor([len(ids) for ids in roots])
    return DeviceLabels(torch.cat(parts), counts, begins, torch.tensor(begins))


def _check_label(
    kernels: TorchKernels,
    labels: DeviceLabels,
    ids: list[np.ndarray],
    valid: list[np.ndarray],
    wanted: list[NodeLabels],
) -> None:
    sizes = [of_type.size for of_type in ids]
    keys = np.concatenate([np.where(used, one, -1) for used, one in zip(valid, ids, strict=True)])
    places = TypedPlaces(sizes, torch.tensor(sizes).cumsum(0))
    of_device = torch.from_numpy(keys)
    with waits_counted() as waits:
        found = kernels.label(labels, of_device, places)
    assert not +waits, "the host would wait for its device"
    assert found.dtype == torch.int64
    for part, used, one, known in zip(found.split(sizes), valid, ids, wanted, strict=True):
        assert part[torch.from_numpy(used)].tolist() == known.label(one[used]).tolist()
        assert (part[torch.from_numpy(~used)] == -1).all()


@each
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), bits=st.sampled_from([4, 40]))
def test_labels_of_trees_are_those_of_the_cpu(
    kernels: TorchKernels, data: st.DataObject, bits: int
) -> None:
    num_trees = data.draw(st.integers(1, 5))
    places = st.tuples(st.integers(0, num_trees - 1), st.integers(0, 9))
    calls = data.draw(st.lists(st.lists(places, max_size=25), max_size=4))
    wanted, roots = TreeLabels(bits), np.arange(num_trees) << bits
    labels = _labels([roots.tolist()], [sum(map(len, calls))])
    wanted.append(roots)
    for call in calls:
        trees, ids = np.array(call, np.int64).reshape(-1, 2).T.copy()
        found = kernels.label(
            labels,
            torch.from_numpy(trees << bits | ids),
            TypedPlaces([len(call)], torch.tensor([len(call)])),
        )
        assert found.tolist() == wanted.label(ids, trees, num_trees).tolist()
    assert labels.keys[: int(labels.counts)].tolist() == wanted.nodes.tolist()
