import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from tests.examples._run import run_example, torchrun_example

pytestmark = pytest.mark.multiprocess


def _accuracy(printed: str) -> float:
    last = printed.strip().splitlines()[-1]
    found = re.fullmatch(r"test accuracy: (\d\.\d{4})  on the whole graph: (\d\.\d{4})", last)
    assert found, last
    assert found.group(1) == found.group(2), "the loader took all neighbours too"
    return float(found.group(1))


def _without_figures(text: str) -> set[str]:
    """Return the lines with each number, path and run of spaces made one."""
    return {
        re.sub(r"\S*/curve.png|out/\S*", "PATH", re.sub(r"[\d,./]*\d", "0", " ".join(line.split())))
        for line in text.splitlines()
    }


def _check_readme(printed: str) -> None:
    """The README shows lines of the kinds that are printed, the last one too."""
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (shown,) = re.findall(r"\$ make demo [^\n]*\n(.*?)\n\n\$ make test", readme, re.DOTALL)
    assert _without_figures(shown) - {"..."} <= _without_figures(printed)
    _accuracy(shown)


@pytest.mark.longest
def test_two_ranks_learn_the_digits(tmp_path: Path) -> None:
    printed = torchrun_example(
        "train_nodes.py",
        "--epochs",
        "4",
        f"--figure={tmp_path}/curve.png",
        f"--tensorboard={tmp_path}/board",
        ranks=2,
    )
    assert _accuracy(printed) > 0.93
    _check_readme(printed)
    assert len(re.findall(r"epoch +\d+/4  loss .* seeds/s", printed)) == 4
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    _check_board(tmp_path / "board", epochs=4)


def _check_board(folder: Path, epochs: int) -> None:
    """Every scalar has a value for each epoch; waiting and collating are shares."""
    from tensorboard.backend.event_processing import event_accumulator

    board = event_accumulator.EventAccumulator(str(folder))
    board.Reload()
    of_loader = (
        "seeds_per_s",
        "wait_share",
        "collate_share",
        "queue_depth",
        "sample_ms",
        "gather_ms",
    )
    expected = {"train/loss", "validation/accuracy", *(f"loader/{name}" for name in of_loader)}
    assert set(board.Tags()["scalars"]) == expected
    for name in expected:
        assert [event.step for event in board.Scalars(name)] == list(range(1, epochs + 1)), name
    for name in ("loader/wait_share", "loader/collate_share"):
        assert all(0 < event.value < 1 for event in board.Scalars(name))
    assert all(event.value > 0 for event in board.Scalars("loader/seeds_per_s"))


def _write_planetoid(raw: Path, num_train: int = 20, num_test: int = 30) -> None:
    """Write a graph of two cliques, each a class, in the raw format of Planetoid."""
    num_nodes = 560 + num_test  # 500 of them are the validation split
    rng = np.random.default_rng(0)
    classes = np.arange(num_nodes) % 2
    features = scipy.sparse.csr_matrix(
        np.eye(2)[classes] + rng.random((num_nodes, 2)), dtype=np.float32
    )
    labels = np.eye(2, dtype=np.int32)[classes]
    known = num_nodes - num_test
    files = {
        "x": features[:num_train],
        "y": labels[:num_train],
        "allx": features[:known],
        "ally": labels[:known],
        "tx": features[known:],
        "ty": labels[known:],
        "graph": {n: [(n + 2) % num_nodes, (n + 4) % num_nodes] for n in range(num_nodes)},
    }
    raw.mkdir(parents=True)
    for name, content in files.items():
        (raw / f"ind.cora.{name}").write_bytes(pickle.dumps(content))
    ids = "\n".join(str(n) for n in range(known, num_nodes))
    (raw / "ind.cora.test.index").write_text(ids + "\n")


def test_one_process_learns_from_planetoid_files(tmp_path: Path) -> None:
    _write_planetoid(tmp_path / "Cora" / "raw")
    before = sorted(tmp_path.rglob("*"))
    printed = run_example(
        "train_nodes.py",
        "--dataset",
        "cora",
        f"--root={tmp_path}",
        "--epochs",
        "3",
        f"--figure={tmp_path}/curve.png",
    )
    assert _accuracy(printed) > 0.8
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "curve.png"])
