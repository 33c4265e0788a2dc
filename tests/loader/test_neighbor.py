"""`DistNeighborLoader` with real workers, one rank, one partition. Few loaders, many cases each."""

import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch_geometric.data import HeteroData

from gigl_loader import ConfigError, DistDataset, DistNeighborLoader, UsageError
from gigl_loader.dataset.schema import EdgeDir
from gigl_loader.sources.sampled_input import epoch_order
from gigl_loader.sources.workers.pool import process_state
from gigl_loader.testing import (
    TinyGraph,
    check_batch,
    check_same_batches,
    open_files,
    wait_until,
    worker_pid,
)
from tests.support.sources import source_of
from tests.support.zygote import Zygote, new_zygote, use_zygote

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("group")]

PLAIN = TinyGraph.random(60, 500)
TYPED = TinyGraph.random(40, 300, heterogeneous=True)
FANOUTS = {
    ("user", "buys", "item"): [2, -1],
    ("item", "rev_buys", "user"): [0, 3],
    ("user", "knows", "user"): [-1, 1],
}

SETUPS: dict[str, tuple[TinyGraph, EdgeDir, dict, int]] = {
    "one worker": (PLAIN, "in", {"num_neighbors": [3, 2], "num_workers": 1, "batch_size": 5}, 37),
    "three workers, shuffled, even": (
        PLAIN,
        "out",
        {
            "num_neighbors": [4],
            "num_workers": 3,
            "batch_size": 4,
            "shuffle": True,
            "drop_last": True,
            "with_weight": True,
            "worker_concurrency": 2,
        },
        43,
    ),
    "heterogeneous, as they come": (
        TYPED,
        "out",
        {
            "num_neighbors": FANOUTS,
            "num_workers": 2,
            "batch_size": 3,
            "shuffle": True,
            "in_order": False,
            "replace": True,
        },
        32,
    ),
    "heterogeneous, one byte of channel": (
        TYPED,
        "in",
        {
            "num_neighbors": FANOUTS,
            "num_workers": 2,
            "batch_size": 7,
            "channel_size": 1,
            "with_edge": True,
        },
        30,
    ),
}


@contextmanager
def _loader(graph: TinyGraph, edge_dir: EdgeDir, how: dict, length: int, dataset=None):
    count = graph.num_nodes[sorted(graph.num_nodes)[-1]]
    seeds = torch.randint(count, (length,), generator=torch.Generator().manual_seed(length))
    given = ("user", seeds) if graph.is_heterogeneous else seeds
    dataset = dataset or graph.dataset(edge_dir=edge_dir)
    with DistNeighborLoader(dataset, input_nodes=given, **{"seed": 11, **how}) as loader:
        yield SimpleNamespace(
            loader=loader, seeds=seeds, graph=graph, edge_dir=edge_dir, how=how, dataset=dataset
        )


@pytest.fixture(scope="module", params=sorted(SETUPS))
def made(request: pytest.FixtureRequest) -> Iterator[SimpleNamespace]:
    with _loader(*SETUPS[request.param]) as one:
        yield one


def _positions(made, epoch: int) -> list[list[int]]:
    """Return the positions in the input of every batch."""
    how, length = made.how, made.seeds.numel()
    positions = (
        epoch_order(length, 11, epoch).tolist() if how.get("shuffle") else list(range(length))
    )
    size = how["batch_size"]
    batches = [positions[i : i + size] for i in range(0, length, size)]
    return [b for b in batches if len(b) == size] if how.get("drop_last") else batches


def _input(made, batch):
    return batch["user"] if made.graph.is_heterogeneous else batch


def _check(made, batch) -> None:
    store = _input(made, batch)
    assert store.batch.tolist() == made.seeds[store.input_id].tolist()
    check_batch(
        batch,
        made.graph,
        seeds=store.batch,
        num_neighbors=made.how["num_neighbors"],
        edge_dir=made.edge_dir,
        replace=made.how.get("replace", False),
        with_weight=made.how.get("with_weight", False),
        **({"input_type": "user"} if made.graph.is_heterogeneous else {}),
    )


def _run(made, epoch: int, most: int | None = None) -> list:
    made.loader.set_epoch(epoch)
    found = []
    for batch in made.loader:
        found.append(batch)
        if len(found) == most:
            break
    return found


def test_every_epoch_is_whole_and_every_batch_right(made) -> None:
    for epoch in (0, 1, 7):
        batches, expected = _run(made, epoch), _positions(made, epoch)
        assert len(batches) == len(expected) == len(made.loader)
        found = [_input(made, batch).input_id.tolist() for batch in batches]
        if made.how.get("in_order", True):
            assert found == expected
        else:
            assert sorted(found) == sorted(expected)
        for batch in batches:  # all of them are held until here
            _check(made, batch)


def test_an_epoch_can_be_run_again(made) -> None:
    def epoch(number: int) -> list:
        return sorted(_run(made, number), key=lambda b: _input(made, b).input_id.tolist())

    first = epoch(3)
    other = epoch(4)
    check_same_batches(first, epoch(3))
    with pytest.raises(AssertionError):
        check_same_batches(first, other)


@pytest.mark.parametrize("most", [1, 3])
def test_a_break_leaves_no_trace(made, most: int) -> None:
    expected = _run(made, 6)
    for _ in range(3):
        assert len(_run(made, 5, most)) == most
    found = _run(made, 6)
    if made.how.get("in_order", True):
        check_same_batches(found, expected)
    assert sorted(_input(made, b).input_id.tolist() for b in found) == sorted(_positions(made, 6))


def test_an_exception_in_the_training_loop_leaves_no_trace(made) -> None:
    def train() -> None:
        for index, _ in enumerate(made.loader):
            1 / (2 - index)

    with pytest.raises(ZeroDivisionError):
        train()
    assert len(_run(made, 2)) == len(made.loader)


def test_a_second_iter_ends_the_first(made) -> None:
    made.loader.set_epoch(8)
    first = iter(made.loader)
    next(first)
    second = iter(made.loader)
    with pytest.raises(UsageError, match="newer iter"):
        next(first)
    found = [next(second) for _ in range(len(made.loader))]
    assert sorted(_input(made, b).input_id.tolist() for b in found) == sorted(_positions(made, 9))
    with pytest.raises(StopIteration):
        next(second)
    with pytest.raises(StopIteration):
        next(second)


def test_epochs_count_up_by_themselves(made) -> None:
    made.loader.set_epoch(20)
    for epoch in (20, 21):
        assert made.loader.epoch == epoch
        found = [_input(made, b).input_id.tolist() for b in made.loader]
        assert sorted(found) == sorted(_positions(made, epoch))


@pytest.mark.parametrize("stops", [[0, 2, 1, 50], [1, 50], [3, 3, 50]])
def test_resuming_yields_exactly_what_was_not_yielded(made, stops: list[int]) -> None:
    expected, found = _positions(made, 12), []
    made.loader.set_epoch(12)
    for stop in stops:
        iterator = iter(made.loader)
        for _, batch in zip(range(stop), iterator, strict=False):
            found.append(_input(made, batch).input_id.tolist())
        state = made.loader.state_dict()
        _run(made, 15, 1)  # whatever comes between does not matter
        made.loader.load_state_dict(state)
        assert made.loader.state_dict() == state
        if state["finished"]:
            break
    if made.how.get("in_order", True):
        assert found == expected
    assert sorted(found) == sorted(expected)


def test_a_finished_state_goes_on_with_the_next_epoch(made) -> None:
    _run(made, 30)
    state = made.loader.state_dict()
    assert state["finished"]
    made.loader.load_state_dict(state)
    assert made.loader.epoch == 31
    assert len(list(made.loader)) == len(made.loader)
    assert made.loader.state_dict()["epoch"] == 31


def test_the_last_batch_yielded_is_not_the_end_seen(made) -> None:
    """After the last batch, before StopIteration: a resumed epoch is empty, then the next comes."""
    made.loader.set_epoch(40)
    iterator = iter(made.loader)
    for _ in range(len(made.loader)):
        next(iterator)
    state = made.loader.state_dict()
    made.loader.load_state_dict(state)
    left = list(made.loader)
    assert left == [] or state["finished"]
    assert len(list(made.loader)) == len(made.loader)


@pytest.mark.parametrize(
    "change",
    [{"num_seeds": 1}, {"seed": 12}, {"batch_size": 99}, {"version": 0}, {"world_size": 2}],
)
def test_states_of_other_loaders_are_refused(made, change: dict) -> None:
    state = {**made.loader.state_dict(), **change}
    with pytest.raises(ConfigError, match=next(iter(change))):
        made.loader.load_state_dict(state)
    with pytest.raises(ConfigError, match="version"):
        made.loader.load_state_dict({})


def test_a_state_survives_saving(made, tmp_path) -> None:
    _run(made, 2, 1)
    torch.save(made.loader.state_dict(), tmp_path / "state")
    made.loader.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert len(list(made.loader)) == len(made.loader) - 1


@pytest.mark.parametrize("epoch", [-1, 1.5, True, None])
def test_epochs_that_are_none(made, epoch) -> None:
    with pytest.raises(ConfigError, match="epoch"):
        made.loader.set_epoch(epoch)


def test_the_iterator_protocol_of_the_loader_itself(made) -> None:
    made.loader.set_epoch(0)
    with pytest.raises(UsageError, match="iter"):
        next(made.loader)
    iterator = iter(made.loader)
    assert iter(iterator) is iterator
    first = next(made.loader)
    assert len(iterator) == len(made.loader) - 1
    second = next(iterator)
    assert _input(made, first).input_id.tolist() != _input(made, second).input_id.tolist()


@pytest.fixture(scope="module")
def without_torch() -> Iterator[Zygote]:
    with new_zygote("gigl_loader.sources.workers.supervisor") as zygote:
        yield zygote


@pytest.mark.parametrize("setup", sorted(SETUPS))
def test_workers_in_a_new_interpreter_get_by_without_torch(
    setup: str, without_torch: Zygote
) -> None:
    """One setup starts as users' loaders do, the others from one such interpreter."""
    with (
        use_zygote(None if setup == "one worker" else without_torch),
        _loader(*SETUPS[setup]) as made,
    ):
        assert len(_run(made, 0)) == len(made.loader)
        for number in range(made.loader.worker_options.num_workers):
            pid = worker_pid(made.loader, number)
            assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()


def test_stats(made) -> None:
    made.loader.stats(reset=True)
    batches = _run(made, 0)
    stats = made.loader.stats()
    assert stats["batches"] == len(batches)
    assert stats["seeds_per_s"] > 0 < stats["bytes_per_s"]
    assert 0 <= stats["wait_share"] <= 1
    assert set(stats["worker_busy_share"]) <= set(range(made.how["num_workers"]))
    assert isinstance(stats["verdict"], str)
    assert made.loader.stats(reset=True)["batches"] == len(batches)
    assert made.loader.stats()["batches"] == 0


def test_all_batches_of_many_epochs_can_be_kept(made) -> None:
    gc.collect()
    before = _num_of_ours()
    kept = [batch for epoch in range(12) for batch in _run(made, epoch)]
    assert _num_of_ours() <= before + 3
    for batch in kept[:: max(1, len(kept) // 12)]:
        _check(made, batch)


def _num_of_ours() -> int:
    """Return how many descriptors this process has of memory of this package."""
    return sum("gigl_loader" in name for name in open_files())


def test_the_workers_do_not_show_in_the_batches() -> None:
    """1 worker, 3 workers, other concurrency, another channel: the same bits, in the same order."""
    graph, edge_dir, how, length = SETUPS["heterogeneous, one byte of channel"]
    dataset = graph.dataset(edge_dir=edge_dir)
    found = []
    for change in (
        {"num_workers": 1, "worker_concurrency": 1},
        {"num_workers": 3, "worker_concurrency": 8, "channel_size": "64MB"},
    ):
        more = {**how, **change, "shuffle": True}
        with _loader(graph, edge_dir, more, length, dataset) as made:
            found.append([*_run(made, 0), *_run(made, 9)])
    check_same_batches(*found)


def test_two_loaders_over_one_dataset_do_not_meddle() -> None:
    how = {"num_neighbors": [3], "batch_size": 4, "num_workers": 1}
    dataset = PLAIN.dataset()
    with (
        _loader(PLAIN, "in", how, 21, dataset) as one,
        _loader(PLAIN, "in", {**how, "shuffle": True}, 34, dataset) as other,
    ):
        expected = _run(one, 1), _run(other, 2)
        one.loader.set_epoch(1)
        other.loader.set_epoch(2)
        first, second = iter(one.loader), iter(other.loader)
        found: tuple[list, list] = ([], [])
        for _ in range(9):
            found[0].extend(batch for batch in [next(first, None)] if batch is not None)
            found[1].extend(batch for batch in [next(second, None)] if batch is not None)
        check_same_batches(found[0], expected[0])
        check_same_batches(found[1], expected[1])
        one.loader.shutdown()
        assert len(_run(other, 3)) == len(other.loader), "the other one goes on"


def test_no_seeds_no_batches_and_a_use_after_the_end() -> None:
    with _loader(PLAIN, "in", {"num_neighbors": [2], "num_workers": 2, "batch_size": 4}, 0) as made:
        assert len(made.loader) == 0
        assert list(made.loader) == []
        assert list(made.loader) == []
        iterator = iter(made.loader)
    made.loader.shutdown()
    uses: list[Callable] = [iter, next, lambda loader: loader.load_state_dict({})]
    for use in uses:
        with pytest.raises(UsageError, match=r"shut down|iter\("):
            use(made.loader)
    with pytest.raises((UsageError, StopIteration)):
        next(iterator)


def test_more_workers_than_batches_and_all_nodes_by_default(caplog) -> None:
    caplog.set_level("INFO")
    with DistNeighborLoader(PLAIN.dataset(), [2], num_workers=3, batch_size=50) as loader:
        batches = list(loader)
        assert [batch.batch.numel() for batch in batches] == [50, 10]
        assert torch.cat([batch.batch for batch in batches]).tolist() == list(range(60))
    assert "using seed=" in caplog.text


def test_a_loader_that_is_dropped_says_so_and_ends_its_workers() -> None:
    made = DistNeighborLoader(PLAIN.dataset(), [2], batch_size=50)
    pid = worker_pid(made)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del made
        gc.collect()
    assert [w.category for w in caught if "without shutdown()" in str(w.message)] == [
        ResourceWarning
    ]
    assert process_state(pid) in ("gone", "dead"), "its workers end with it"


def test_a_loader_that_is_dropped_is_shut_down_where_warnings_are_errors(monkeypatch) -> None:
    class Noted(DistNeighborLoader):
        num_ended = 0

        def shutdown(self, *args: Any, **how: Any) -> None:
            Noted.num_ended += 1
            super().shutdown(*args, **how)

    monkeypatch.setattr(sys, "unraisablehook", lambda it: None)  # Python prints what __del__ raises
    made = Noted(PLAIN.dataset(), [2], num_workers=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del made
        gc.collect()
    assert Noted.num_ended == 1


@pytest.mark.parametrize("weighted", [("user", "buys", "item"), ("item", "rev_buys", "user")])
def test_weights_of_one_edge_type_alone(weighted) -> None:
    """The type with weights is drawn by weight, the other one uniformly."""
    ids = torch.arange(20)
    data = HeteroData()
    data["user"].num_nodes = data["item"].num_nodes = 20
    for edge_type in (("user", "buys", "item"), ("item", "rev_buys", "user")):
        data[edge_type].edge_index = torch.stack([ids.repeat_interleave(4), torch.arange(80) % 20])
    first = torch.arange(80) < 40  # the other half has weight 0 and is never drawn
    data[weighted].edge_weight = first.float()
    dataset = DistDataset.from_pyg(data)
    for edge_type in data.edge_types:
        with DistNeighborLoader(
            dataset, [-1], (edge_type[2], ids), batch_size=20, with_weight=True, with_edge=True
        ) as loader:
            (batch,) = loader
        expected = range(40) if edge_type == weighted else range(80)
        assert sorted(batch[edge_type].e_id.tolist()) == list(expected)


def test_batches_that_wait_are_counted() -> None:
    with DistNeighborLoader(PLAIN.dataset(), [2], batch_size=10, num_workers=2, seed=1) as loader:
        batches = iter(loader)
        next(batches)
        source = source_of(loader)
        wait_until(lambda: source.count_waiting() == 5, "all others wait", timeout=60)
        loader.stats(reset=True)
        assert len(list(batches)) == 5
        assert loader.stats()["queue_depth"] == (4 + 3 + 2 + 1 + 0) / 5
