"""The top of each seed, of one channel or several."""

from typing import Any

import numpy as np
from push_cases import push, vector

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODES
from gigl_loader.sampler.ppr_top import merged, target_counts, top_nodes
from gigl_loader.sampler.reader import GraphReader
from gigl_loader.testing import TinyGraph, as_worker_gets


def test_the_top_is_of_the_largest_scores_and_fills_up_with_residuals() -> None:
    path = [edge for i in range(9) for edge in ((i, i + 1), (i + 1, i))]
    store = GraphReader(as_worker_gets(TinyGraph.homogeneous(10, path).dataset().view()), None)
    around, slots = push(store, [4, 0], 0.5, 0.05)
    for topup in (False, True):
        for most in (1, 3, 20):
            top = top_nodes(slots, around, NODES, most, topup=topup)
            for position in (0, 1):
                score = vector(around, slots, position, 10, "score")
                total = score + vector(around, slots, position, 10, "residual") * topup
                pushed = sorted(np.flatnonzero(score), key=lambda i: (-score[i], i))
                others = sorted(
                    set(np.flatnonzero(total)) - set(pushed), key=lambda i: (-total[i], i)
                )
                wanted = sorted((pushed + others)[:most], key=lambda i: (-total[i], i))
                mine = top.seed == position
                assert top.ids[mine].tolist() == wanted
                assert top.values[mine, 0].tolist() == total[wanted].tolist()
                hops = np.abs(np.array(wanted) - [4, 0][position])
                assert (top.values[mine, 1] == 1 / (1 + hops)).all()


def _top(rows: list[tuple[int, int, float, float]]) -> Any:
    from gigl_loader.sampler.ppr_top import Top

    seed, ids, score, near = (np.array([row[i] for row in rows]) for i in range(4))
    return Top(seed.astype(int), ids.astype(int), np.stack([score, near], 1))


def test_channels_fill_their_positions_and_then_the_best_do() -> None:
    first = _top([(0, 7, 0.9, 1.0), (0, 8, 0.5, 0.5), (0, 9, 0.4, 0.5), (1, 7, 0.2, 0.5)])
    second = _top([(0, 9, 0.6, 0.25), (0, 5, 0.1, 0.5)])
    found = merged([first, second], [1, 1])
    assert list(zip(found.seed.tolist(), found.ids.tolist(), strict=True)) == [
        (0, 7), (0, 9), (1, 7),
    ]  # fmt: skip
    assert found.values.tolist() == [
        [0.9, 1.0, 0.9, 1.0, 1.0, 0.0, 0.0, 0.0],
        [0.6, 0.5, 0.4, 0.5, 1.0, 0.6, 0.25, 1.0],
        [0.2, 0.5, 0.2, 0.5, 1.0, 0.0, 0.0, 0.0],
    ]
    more = merged([first, second], [1, 3])  # two positions of the second are left over
    assert more.ids[more.seed == 0].tolist() == [7, 9, 8, 5]
    assert merged([_top([])] * 2, [1, 1]).values.shape == (0, 8)


def test_targets_add_up() -> None:
    assert target_counts([0.6, 0.4], 200) == [120, 80]
    assert target_counts([1 / 3, 1 / 3, 1 / 3], 5) == [2, 2, 1]
    assert target_counts([0.5, 0.5], 1) == [1, 0]
