"""What users of other loaders expect without reading: one loader, many small habits."""

import io
import os
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data
from tqdm import tqdm

from gigl_loader import ConfigError, DevicePrefetcher, DistDataset, DistNeighborLoader
from gigl_loader.testing import TinyGraph, check_same_batches
from tests.support.sources import source_of

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("group")]

SEEDS = torch.arange(60).flip(0)[:50]


def leave_a_note(folder: Path, number: int) -> None:
    """Run in each worker before it samples."""
    (folder / f"{number}").write_text(str(os.getpid()))


@pytest.fixture(scope="module")
def data() -> Data:
    """Features as they are stored to save memory."""
    found = TinyGraph.random(60, 500).to_pyg()
    generator = torch.Generator().manual_seed(0)
    found.x = torch.randint(200, (60, 5), generator=generator).half()
    found.edge_attr = torch.randint(256, (500, 3), generator=generator, dtype=torch.uint8)
    return found


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notes")


@pytest.fixture(scope="module")
def loader(data: Data, notes: Path) -> Iterator[DistNeighborLoader]:
    with DistNeighborLoader(
        DistDataset.from_pyg(data),
        [3, 2],
        SEEDS,
        batch_size=8,
        num_workers=2,
        shuffle=True,
        seed=3,
        worker_init_fn=partial(leave_a_note, notes),
    ) as one:
        yield one


def test_the_init_function_ran_in_each_worker(loader: DistNeighborLoader, notes: Path) -> None:
    found = {int(file.name): int(file.read_text()) for file in notes.iterdir()}
    assert found == dict(enumerate(source_of(loader).pids))


def test_a_loader_says_what_it_is(loader: DistNeighborLoader) -> None:
    loader.set_epoch(4)
    assert repr(loader) == (
        "DistNeighborLoader(colocated, seeds=50, batches=7, num_neighbors=[3, 2], "
        "batch_size=8, workers=2, epoch=4)"
    )
    closed = DistNeighborLoader(loader.data, [2], SEEDS, drop_last=True, batch_size=20)
    closed.shutdown()
    assert repr(closed) == (
        "DistNeighborLoader(colocated, seeds=50, batches=2, num_neighbors=[2], "
        "batch_size=20, workers=1, epoch=0, "
        "shut down)"
    )
    assert repr(DistNeighborLoader.__new__(DistNeighborLoader)) == (
        "DistNeighborLoader(was not built)"
    )


def test_tqdm_shows_a_total(loader: DistNeighborLoader) -> None:
    with tqdm(loader, file=io.StringIO()) as bar:
        assert bar.total == len(loader) == 7
        assert sum(1 for _ in bar) == bar.n == 7


def test_the_state_says_what_the_loader_was_built_with(loader: DistNeighborLoader) -> None:
    state = loader.state_dict()
    expected = {
        "num_seeds": 50,
        "batch_size": 8,
        "num_batches": 7,
        "shuffle": True,
        "drop_last": False,
        "rank": 0,
        "world_size": 1,
        "seed": 3,
    }
    assert {name: state[name] for name in expected} == expected
    for name, value in expected.items():
        with pytest.raises(ConfigError, match=rf"saved -> now\) {name}: .* -> {value}:"):
            loader.load_state_dict({**state, name: value + 1})
    assert loader.state_dict() == state, "what was refused changed nothing"


def test_the_state_of_as_many_other_seeds_is_refused(loader: DistNeighborLoader) -> None:
    """They were drawn anew, or in another order: some would come twice, and some never."""
    state = loader.state_dict()
    seeds = loader.input_data.node
    for other in (seeds.flip(0), seeds.clone().index_fill_(0, torch.tensor([7]), 1)):
        changed = DistNeighborLoader(loader.data, [2], other, batch_size=8, shuffle=True, seed=3)
        with changed, pytest.raises(ConfigError, match=r"saved -> now\) seeds_digest: "):
            changed.load_state_dict(state)
    loader.load_state_dict(state)


@pytest.mark.parametrize("junk", [None, [1], {"model": 1}, torch.ones(1)])
def test_what_is_no_state_is_refused(loader: DistNeighborLoader, junk: Any) -> None:
    with pytest.raises(ConfigError, match=r"a state_dict\(\)"):
        loader.load_state_dict(junk)


def test_dropping_a_resume_by_accident_is_said(loader: DistNeighborLoader, caplog) -> None:
    loader.set_epoch(2)
    assert len(list(islice(loader, 3))) == 3
    state = loader.state_dict()
    loader.load_state_dict(state)
    loader.set_epoch(2)
    assert len(list(loader)) == 4
    assert "drops the position" not in caplog.text
    loader.load_state_dict(state)
    loader.set_epoch(0)  # as a loop over range(3) would
    assert len(list(loader)) == 7
    assert "set_epoch(0) drops the position" in caplog.text
    assert "after 3 batches of epoch 2: begin the loop with loader.epoch" in caplog.text


def test_the_finished_flag_is_set_by_the_end_of_the_epoch_alone(loader: DistNeighborLoader) -> None:
    loader.set_epoch(4)
    flags = [loader.state_dict()["finished"]]
    for _ in loader:
        flags.append(loader.state_dict()["finished"])
    flags.append(loader.state_dict()["finished"])
    assert flags == [False] * 8 + [True]


def test_features_are_cast_on_the_way(loader: DistNeighborLoader, data: Data) -> None:
    """Around a loader, `DevicePrefetcher` delivers another dtype; resuming works as without it."""
    types = {"x": torch.float32, "edge_attr": torch.float32}
    cast = DevicePrefetcher(loader, "cpu", cast=types)
    cast.set_epoch(5)
    found = list(islice(cast, 2))
    state = cast.state_dict()
    assert state["yielded"] == 2
    cast.load_state_dict(state)
    found += list(cast)
    loader.set_epoch(5)
    plain = list(loader)
    assert {plain[0].x.dtype, plain[0].edge_attr.dtype} == {torch.float16, torch.uint8}
    for batch, stored in zip(found, plain, strict=True):
        for name in types:
            stored[name] = stored[name].float()
        assert torch.equal(batch.x, data.x[batch.n_id].float())
    check_same_batches(found, plain)
