"""From scores to the nodes that a batch gets: the top of each seed, of one channel or several."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gigl_loader.dataset.schema import NodeType
from gigl_loader.memory.segments import Array
from gigl_loader.sampler.ppr_push import Neighbourhood, SeedScores


@dataclass(frozen=True)
class Top:
    """Nodes of one type, seed after seed."""

    seed: Array
    """``[n]`` int64, ascending: position of the seed in the batch."""
    ids: Array
    """``[n]`` int64, global ids; those of a seed descend by score, equals ascend by id."""
    values: Array
    """``[n, columns]`` float64: score, proximity, and what channels add."""


def top_nodes(
    scores: SeedScores, around: Neighbourhood, node_type: NodeType, most: int, *, topup: bool
) -> Top:
    """Return the nodes of a type with the largest scores, at most ``most`` for each seed.

    Args:
        scores: Of a push.
        around: What the push knew of the graph.
        node_type: Of the nodes.
        most: Nodes for a seed.
        topup: Add residuals to scores, and let nodes that were not pushed take places left over.
    """
    ids = around.ids_of_type(node_type, scores.node)
    wanted = (ids >= 0) & ((scores.score > 0) | (topup & (scores.residual > 0)))
    chosen = np.flatnonzero(wanted)
    seed, ids, pushed = scores.seed[chosen], ids[chosen], scores.score[chosen] > 0
    total = scores.score[chosen] + scores.residual[chosen] * topup
    by = np.where(pushed, scores.score[chosen], total)
    first = ranked(seed, ~pushed, -by, ids)  # pushed nodes first: they keep their places
    kept = first[positions_within(seed[first]) < most]
    # Chosen by score, shown by total: with ``topup`` a node may be behind one that was not pushed.
    kept = kept[ranked(seed[kept], -total[kept], ids[kept])]
    near = 1.0 / (1.0 + scores.hop[chosen][kept])
    return Top(seed[kept], ids[kept], np.stack([total[kept], near], 1))


def merged(channels: Sequence[Top], targets: Sequence[int]) -> Top:
    """Return the nodes of all channels, each once, with what each channel says of it.

    A node counts for the channel where it scores most. Each channel fills as many positions as it
    may; positions that are left over go to the best of the others, whichever channel they are of.

    Args:
        channels: The top of each.
        targets: Positions of each; their sum is the most nodes for a seed.
    """
    seed = np.concatenate([top.seed for top in channels])
    ids = np.concatenate([top.ids for top in channels])
    number = np.repeat(np.arange(len(channels)), [top.ids.size for top in channels])
    pairs, position = np.unique(np.stack([seed, ids]), axis=1, return_inverse=True)
    # Three numbers of each channel: score, proximity, and whether it has the node at all.
    by_channel = np.zeros((pairs.shape[1], len(channels), 3))
    found = np.concatenate([top.values for top in channels])
    by_channel[position.reshape(-1), number, :2] = found
    by_channel[position.reshape(-1), number, 2] = 1.0
    scores, near = by_channel[:, :, 0], by_channel[:, :, 1].max(1, initial=0)
    best, channel = scores.max(1, initial=0), scores.argmax(1)
    seed, ids = pairs
    # Ids last in each order: which of two equal scores comes first depends on nothing else.
    order = ranked(seed, channel, -best, ids)
    in_channel = positions_within(seed[order], channel[order])
    # Within their channel's positions: these come first, and the others fill up what is left of the
    # sum, best first.
    full = in_channel < np.asarray(targets)[channel[order]]
    order = order[ranked(seed[order], ~full, -best[order], channel[order], ids[order])]
    kept = order[positions_within(seed[order]) < sum(targets)]
    kept = kept[ranked(seed[kept], -best[kept], channel[kept], ids[kept])]
    details = by_channel[kept].reshape(kept.size, 3 * len(channels))
    values = np.concatenate([best[kept, None], near[kept, None], details], axis=1)
    return Top(seed[kept], ids[kept], values)


def target_counts(ratios: Sequence[float], most: int) -> list[int]:
    """Return positions of each channel: ``ratios`` of ``most``, largest remainders rounded up."""
    exact = np.asarray(ratios) * most
    # 0.29 * 100 is 28.999...: a whole number that floats miss by a little is one all the same.
    counts = np.floor(exact + 1e-9).astype(np.int64)
    remainders = exact - counts
    for channel in np.argsort(-remainders, kind="stable")[: most - int(counts.sum())]:
        counts[channel] += 1
    return [int(count) for count in counts]


def ranked(*keys: Array) -> Array:
    """Return the order that sorts by the first key, then the next."""
    order: Array = np.lexsort(keys[::-1])
    return order


def positions_within(*groups: Array) -> Array:
    """Return the position of each item in its group; items of a group are side by side."""
    size = groups[0].size
    starts = np.zeros(size, np.bool_)
    starts[:1] = True
    for group in groups:
        starts[1:] |= group[1:] != group[:-1]
    at = np.arange(size)
    # The position where the group began is the largest start up to here.
    found: Array = at - np.maximum.accumulate(np.where(starts, at, 0)) if size else at
    return found
