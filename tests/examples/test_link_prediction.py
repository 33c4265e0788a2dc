import re
from pathlib import Path

import pytest
import torch

from tests.examples._run import EXAMPLES, run_example

pytestmark = pytest.mark.multiprocess

RESULT = re.compile(r"^(.+?) +test recall@20 (\d\.\d{4})  NDCG@20 (\d\.\d{4})$", re.MULTILINE)


def _results(printed: str) -> dict[str, tuple[float, float]]:
    return {name: (float(recall), float(ndcg)) for name, recall, ndcg in RESULT.findall(printed)}


def test_two_ranks_find_the_planted_items(tmp_path: Path) -> None:
    printed = run_example(
        "link_prediction.py",
        "--epochs",
        "2",
        f"--figure={tmp_path}/curve.png",
        "--nearest=faiss",
        "--faiss-index=Flat",
        ranks=2,
    )
    found = _results(printed)
    by_faiss = re.findall(r"by faiss Flat: test recall@20 (\S+)  NDCG@20 (\S+)", printed)
    ours_exactly = found["2 processes, gigl_loader"]
    assert [tuple(map(float, one)) for one in by_faiss] == [pytest.approx(ours_exactly, abs=2e-3)]
    ours, alone, popular = (
        found[name][0]
        for name in ("2 processes, gigl_loader", "one process, memory", "items by popularity")
    )
    assert ours > 0.8  # a random order finds 0.02
    assert abs(ours - alone) < 0.05
    assert popular < 0.1
    by_link = re.findall(r"^ +each link: filtered MRR (.+)  Hits@10 (.+)$", printed, re.MULTILINE)
    assert len(by_link) == 3
    rank, hits = map(float, by_link[0])
    assert 0.1 < rank < hits < 1  # a random order finds 0.007 and 0.01
    assert len(re.findall(r"epoch +\d/2  loss .* validation recall@20", printed)) == 2
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def _write_lastfm(root: Path) -> None:
    """Write 30 users in three tastes, of 12 artists each, in the files of the real data."""
    train: list[str] = []
    test: list[str] = []
    for user in range(1, 31):
        for position in range(8):
            artist = 1 + 12 * (user % 3) + (user + position) % 12
            (test if position == 7 else train).append(f"{user}\t{artist}\t1.5e+03")
    (root / "data1.txt").write_text("\n".join(train) + "\n")
    (root / "test1.txt").write_text("\n".join(test) + "\n")
    ties = [f"{user}\t{1 + (user + 2) % 30}" for user in range(1, 31)]
    (root / "trustnetwork.txt").write_text("\n".join(ties) + "\n")


def test_one_process_reads_the_files_of_the_real_data(tmp_path: Path) -> None:
    _write_lastfm(tmp_path)
    printed = run_example(
        "link_prediction.py",
        "--dataset",
        "lastfm",
        f"--root={tmp_path}",
        "--epochs",
        "4",
        "--judge-every",
        "2",
        "--random-items",
        "16",
        "--seeds",
        "1",
        "--single",
        "none",
        "--exclude-supervision",
        f"--figure={tmp_path}/curve.png",
    )
    found = _results(printed)
    assert set(found) == {"1 processes, gigl_loader", "items by popularity"}
    assert found["1 processes, gigl_loader"][0] > 0.9  # 12 artists of one's taste, 20 positions


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


def test_links_are_ranked_without_those_that_are_right_too(model) -> None:
    """Against a count, link by link: how many items are before it, and are no link of its user."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(7, 30, generator=generator)
    links = torch.stack([torch.randint(n, (60,), generator=generator) for n in (7, 30)])
    known, held_out = links[:, :35], links[:, 35:]
    right = set(map(tuple, links.t().tolist()))
    asked = set(map(tuple, held_out.t().tolist())) - set(map(tuple, known.t().tolist()))
    ranks = [
        1 + sum(bool(scores[u, j] > scores[u, i]) and (u, j) not in right for j in range(30))
        for u, i in asked
    ]
    found = model.judge_links(scores, known, held_out)
    assert found.links == len(asked)
    assert found.reciprocal_rank == pytest.approx(sum(1 / rank for rank in ranks))
    assert found.hits == pytest.approx(sum(rank <= 10 for rank in ranks))


@pytest.fixture
def nearest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import _links_nearest

    return _links_nearest


@pytest.mark.parametrize(("index", "least"), [("Flat", 1.0), ("HNSW32", 0.9)])
def test_an_index_finds_what_a_ranking_of_all_items_does(nearest, index: str, least: float) -> None:
    torch.manual_seed(0)
    users, items = torch.randn(40, 16), torch.randn(300, 16)
    known = torch.stack([torch.randint(n, (200,)) for n in (39, 300)])  # user 39 knows nothing
    scores = users @ items.T
    scores[known[0], known[1]] = float("-inf")
    wanted = scores.topk(10).indices
    found = nearest.nearest_items(users, items, known, 10, index)
    same = [len(set(a) & set(b)) for a, b in zip(found.tolist(), wanted.tolist(), strict=True)]
    assert sum(same) / wanted.numel() >= least
    assert not torch.isneginf(scores.gather(1, found)).any()


def test_where_there_are_no_more_items(nearest) -> None:
    known = torch.tensor([[0, 0, 1], [0, 2, 1]])
    items = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    found = nearest.nearest_items(torch.eye(2), items, known, 4)
    assert found.tolist() == [[1, -1, -1, -1], [0, 2, -1, -1]]


def test_faiss_is_named_where_it_is_missing(nearest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(SystemExit, match=r"gigl_loader\[nearest\].*faiss-cpu"):
        nearest.check_faiss()
