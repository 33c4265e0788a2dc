r"""Expected numbers of nodes and edges of a batch.

A hop with ``F`` nodes to expand draws ``F * E[min(degree, fanout)]`` edges. Node ``i`` is the end
of a draw with a probability ``p_i`` in proportion to its edges. So of ``D`` draws it is the end of
at least one with ``1 - (1 - p_i)**D``, about ``1 - exp(-D * p_i)``; the sum over nodes is the
number of distinct ones. Nodes that earlier hops found do not count again: the sum is taken over the
draws of all hops, and its previous value is subtracted.

Source:
    The occupancy problem with unequal probabilities: Johnson and Kotz, "Urn Models and Their
    Application" (1977), chapter 3; Poisson draws instead of a fixed number: Holst, "On the Lengths
    of the Pieces of a Stick Broken at Random" (1986) and the literature there. The nodes of a
    frontier have the degrees of nodes drawn in proportion to their edges: this is the friendship
    paradox (Feld, 1991), and holds if degrees of neighbours are independent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from gigl_loader.errors import ConfigError
from gigl_loader.runtime.memory.segments import Array

_CLASSES = 256
"""Number of degree classes by which a graph is described."""
_SUBCLASSES = 8


@dataclass(frozen=True)
class DegreeDistribution:
    """A graph as classes of nodes of equal degree."""

    nodes: float
    share: Array
    """``[classes]`` float64, of the nodes; sums to 1."""
    degree: Array
    """``[classes]`` float64, neighbours of a node of the class, from which it draws."""
    pull: Array
    """``[classes]`` float64, frequency of its draws by others, relative to the mean of 1."""
    seed_pull: Array | float = 1.0
    """``[classes]`` float64, frequency as a seed, relative to the mean of 1."""

    @classmethod
    def uniform(cls, nodes: float, edges: float) -> "DegreeDistribution":
        """Return a graph with random edges: degrees follow Poisson's distribution."""
        # Poisson's variance is its mean: beyond six standard deviations almost nothing is left.
        mean = edges / nodes
        spread = 6 * np.sqrt(mean) + 6
        degree = np.unique(np.linspace(max(0.0, mean - spread), mean + spread, _CLASSES).round())
        # As logarithms: factorials past that of 170 are infinite in float64.
        log_factorials = np.array([math.lgamma(1 + d) for d in degree])
        log_share = degree * np.log(mean) - mean - log_factorials
        share = np.exp(log_share - log_share.max())
        return cls(nodes, share / share.sum(), degree, np.ones(degree.size))

    @classmethod
    def power_law(cls, nodes: float, edges: float, exponent: float = 2.3) -> "DegreeDistribution":
        """Return a graph whose degrees fall as ``degree ** -exponent``, with equal pulls.

        Source:
            Most large graphs have exponents between 2 and 3: Clauset, Shalizi and Newman,
            "Power-Law Distributions in Empirical Data" (2009). The least degree follows from the
            mean, and the largest is the one of a single node in ``nodes``.
        """
        mean = edges / nodes
        tail = np.logspace(0, np.log10(nodes) / (exponent - 1), _CLASSES)
        share = tail ** (1 - exponent)  # of a class on a logarithmic scale
        share /= share.sum()
        degree = tail * (mean / (share @ tail))
        return cls(nodes, share, degree, degree / mean)

    @classmethod
    def measured(
        cls, degrees: Array, pulls: Array | None = None, is_seed: Array | None = None
    ) -> "DegreeDistribution":
        """Return a graph from the degrees of all nodes or of a sample of them.

        Args:
            degrees: ``[n]``, neighbours of each node.
            pulls: ``[n]``, how often each of them is a neighbour. None: equal to ``degrees``.
            is_seed: ``[n]`` bool, the possible seeds. None: all.
        """
        neighbors = np.asarray(degrees, np.float64)
        others = neighbors if pulls is None else np.asarray(pulls, np.float64)
        seeds = np.ones(neighbors.size) if is_seed is None else np.asarray(is_seed, np.float64)
        order, starts = _classes_of(neighbors, others)
        sizes = np.diff(starts, append=neighbors.size)

        def mean(values: Array) -> Array:
            return cast("Array", np.add.reduceat(values[order], starts) / sizes)

        # Without edges, pulls are 0, not NaN.
        pull = mean(others) / max(others.mean(), 1e-12)
        seed_pull = mean(seeds) / max(seeds.mean(), 1e-12)
        return cls(float(neighbors.size), sizes / neighbors.size, mean(neighbors), pull, seed_pull)


def _classes_of(degrees: Array, pulls: Array) -> tuple[Array, Array]:
    """Return an order of nodes in which classes are contiguous, and the start of each class.

    Classes have similar pulls, the finer the higher they are, since few nodes are in most batches;
    within them, similar degrees.
    """
    # Cuts count from the end: of 1 node, of a few, ... of all, in geometric steps. In addition,
    # even steps, since most nodes are rarely drawn, and are most of all nodes.
    num = degrees.size
    by_pull = np.argsort(pulls, kind="stable")
    top = num - np.geomspace(1, num, _CLASSES)
    cuts = np.unique(
        np.concatenate([np.linspace(0, num, _CLASSES, endpoint=False), top]).astype(int)
    )
    group = np.empty(num, np.int32)
    group[by_pull] = np.repeat(np.arange(cuts.size), np.diff(cuts, append=num))
    order = np.lexsort((degrees, group))
    within = np.linspace(0, 1, _SUBCLASSES, endpoint=False)
    ends = np.append(cuts[1:], num)
    starts = cuts[:, None] + ((ends - cuts)[:, None] * within).astype(int)
    return order, np.unique(starts)


@dataclass(frozen=True)
class BatchSize:
    """Expected nodes, edges and rows of a batch."""

    seeds: float
    nodes: float
    """Distinct, seeds included."""
    edges: float
    requested: float
    """Nodes whose neighbours were drawn: the ids in requests to partitions."""
    hit_rate: float
    """Share of the rows of other machines that a cache has."""
    horizon: float = 0.0
    """Batches within which cached rows are used again."""


def expect(
    degrees: DegreeDistribution, fanouts: Sequence[int], batch_size: int, cache: float = 0.0
) -> BatchSize:
    """Return the expected contents of a batch of k-hop neighbourhoods.

    Args:
        degrees: The graph.
        fanouts: Neighbours per hop; -1: all.
        batch_size: Seeds.
        cache: Share of the rows of other machines that the cache keeps.

    Raises:
        ConfigError: A fanout is below -1, or there are more seeds than nodes.
    """
    if any(fanout < -1 for fanout in fanouts):
        raise ConfigError(f"num_neighbors must be -1 (all) or more, got {list(fanouts)}")
    if not 1 <= batch_size <= degrees.nodes:
        raise ConfigError(
            f"batch_size must be 1 to the number of nodes ({degrees.nodes:,.0f}), got {batch_size}"
        )
    # Of each class: the logarithm of the chance that one of its nodes is not in the batch so far.
    # Draws multiply chances, so hops add up here, and tiny chances keep their digits. Never 0: a
    # node that is in each batch would have minus infinity.
    chosen = batch_size / degrees.nodes * degrees.seed_pull
    log_missed = np.log1p(-np.minimum(chosen, 1 - 1e-12))
    expanded = -np.expm1(log_missed)  # share of each class that is in the batch and new
    edges = asked = 0.0
    for fanout in fanouts:
        drawn = degrees.degree if fanout == -1 else np.minimum(degrees.degree, fanout)
        frontier = degrees.nodes * degrees.share * expanded
        asked += float(frontier.sum())
        draws = float(frontier @ drawn)
        edges += draws
        before = -np.expm1(log_missed)
        log_missed = log_missed - draws / degrees.nodes * degrees.pull
        expanded = -np.expm1(log_missed) - before
    nodes = float(degrees.nodes * (degrees.share @ -np.expm1(log_missed)))
    horizon = reuse_horizon(degrees.share, log_missed, cache)
    hits = kept_share(degrees.share, log_missed, horizon)
    return BatchSize(float(batch_size), nodes, edges, asked, hits, horizon)


def reuse_horizon(share: Array, log_missed: Array, cache: float) -> float:
    """Return the batches within which a cached row must be used again, by Belady's rule.

    Args:
        share: ``[classes]`` float64, of the rows; sums to 1.
        log_missed: ``[classes]`` float64, logarithm of the chance that a row is not in a batch.
        cache: Share of the rows that fit.

    Source:
        Belady (1966) keeps the rows that are used again soonest. If batches are independent, and
        rows are many, these are the ones used again within some number of batches ``T``, the same
        at all times. A row that is in a batch with chance ``q`` is used again within ``T`` with ``1
        - (1 - q)**T``, and takes its place until then: of all times, the share ``1 - (1 - q)**T *
        (1 + T * q)``. ``T`` is the value at which all places of the cache are taken. Che, Tung and
        Wang, "Hierarchical Web Caching Systems" (2002) find the ``T`` of an LRU cache in the same
        way.
    """
    chance = -np.expm1(log_missed)
    if cache <= 0 or not share @ chance > 0:
        return 0.0
    # The taken places grow with T, so bisection finds it; of a logarithm, since T has no scale.
    low, high = -60.0, 60.0  # of the logarithm of T, to the base of 2
    for _ in range(100):
        middle = (low + high) / 2
        missed = np.exp(2.0**middle * log_missed)
        taken = 1 - share @ (missed * (1 + 2.0**middle * chance))
        low, high = (middle, high) if taken <= cache else (low, middle)
    return float(2.0**low)


def kept_share(share: Array, log_missed: Array, horizon: float) -> float:
    """Return the share of the rows of batches that are used again within ``horizon`` batches.

    Args:
        share: As for `reuse_horizon`.
        log_missed: As for `reuse_horizon`.
        horizon: From there; a cache that knows the next uses of rows has these.
    """
    used = share * -np.expm1(log_missed)
    if horizon <= 0 or not used.sum() > 0:
        return 0.0
    return max(0.0, float(1 - used @ np.exp(horizon * log_missed) / used.sum()))
