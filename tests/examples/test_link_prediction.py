import re
from pathlib import Path

import pytest
import torch
from _run import EXAMPLES, run_example

pytestmark = pytest.mark.multiprocess

RESULT = re.compile(r"^(.+?) +test recall@20 (\d\.\d{4})  NDCG@20 (\d\.\d{4})$", re.MULTILINE)


def _results(printed: str) -> dict[str, tuple[float, float]]:
    return {name: (float(recall), float(ndcg)) for name, recall, ndcg in RESULT.findall(printed)}


def test_two_ranks_find_the_planted_items(tmp_path: Path) -> None:
    printed = run_example(
        "link_prediction.py", "--epochs", "3", f"--figure={tmp_path}/curve.png", ranks=2
    )
    found = _results(printed)
    ours, alone, popular = (found[name][0] for name in (
        "2 processes, gigl_loader", "one process, memory", "items by popularity"
    ))  # fmt: skip
    assert ours > 0.8  # a random order finds 0.02
    assert abs(ours - alone) < 0.05
    assert popular < 0.1
    assert len(re.findall(r"epoch +\d/3  loss .* validation recall@20", printed)) == 3
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def _write_lastfm(root: Path) -> None:
    """Write 30 users in three tastes, of 12 artists each, in the files of the real data."""
    train, test = [], []
    for user in range(1, 31):
        for place in range(8):
            artist = 1 + 12 * (user % 3) + (user + place) % 12
            (test if place == 7 else train).append(f"{user}\t{artist}\t1.5e+03")
    (root / "data1.txt").write_text("\n".join(train) + "\n")
    (root / "test1.txt").write_text("\n".join(test) + "\n")
    ties = [f"{user}\t{1 + (user + 2) % 30}" for user in range(1, 31)]
    (root / "trustnetwork.txt").write_text("\n".join(ties) + "\n")


def test_one_process_reads_the_files_of_the_real_data(tmp_path: Path) -> None:
    _write_lastfm(tmp_path)
    printed = run_example(
        "link_prediction.py", "--dataset", "lastfm", f"--root={tmp_path}", "--epochs", "4",
        "--judge-every", "2", "--random-items", "16", "--seeds", "1", "--single", "none",
        "--exclude-supervision", f"--figure={tmp_path}/curve.png",
    )  # fmt: skip
    found = _results(printed)
    assert set(found) == {"1 processes, gigl_loader", "items by popularity"}
    assert found["1 processes, gigl_loader"][0] > 0.9  # 12 artists of one's taste, 20 places


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import _links_model

    return _links_model


def test_recall_and_ndcg_by_hand(model) -> None:
    scores = torch.arange(30, 0, -1).float().repeat(3, 1)  # items in order of their number
    known = torch.tensor([[0, 1], [0, 5]])
    held_out = torch.tensor([[0, 0, 1], [1, 25, 2]])
    found = model.judge(scores, known, held_out)
    assert found.users == 2  # user 2 has nothing to find
    # user 0: item 1 is first, item 25 is beyond 20; user 1: item 2 is third
    assert found.recall == pytest.approx(0.5 + 1.0)
    best = 1 + 1 / torch.tensor(3.0).log2()
    assert found.ndcg == pytest.approx(float(1 / best + 1 / torch.tensor(4.0).log2()))
