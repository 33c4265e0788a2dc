r"""How many nodes and edges a batch has, expected.

A hop with ``F`` nodes to expand draws ``F * E[min(degree, fanout)]`` edges. Node ``i`` is the end
of a draw with a probability ``p_i`` in proportion to its edges, so of ``D`` draws it is the end of
at least one with ``1 - (1 - p_i)**D``, about ``1 - exp(-D * p_i)``; the sum over nodes is how many
distinct ones are found. Nodes that earlier hops found are found again and do not count: the sum is
taken over the draws of all hops, and what it was before is subtracted.

Source:
    The occupancy problem with unequal probabilities: Johnson and Kotz, "Urn Models and Their
    Application" (1977), chapter 3; Poisson draws in place of a fixed number: Holst, "On the Lengths
    of the Pieces of a Stick Broken at Random" (1986) and the literature there. That the nodes of a
    frontier have the degrees of nodes drawn in proportion to their edges is the friendship paradox
    (Feld, 1991), and holds where degrees of neighbours do not depend on each other.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gigl_loader.errors import ConfigError
from gigl_loader.memory.segments import Array

_CLASSES = 256
"""Of degrees, by which a graph is described."""


@dataclass(frozen=True)
class Degrees:
    """A graph as classes of nodes that have as many edges as each other."""

    nodes: float
    share: Array
    """``[classes]`` float64, of the nodes; sums to 1."""
    degree: Array
    """``[classes]`` float64, neighbours of a node of the class, which it draws from."""
    pull: Array
    """``[classes]`` float64, how often it is drawn by others, relative to the mean of 1."""

    @classmethod
    def uniform(cls, nodes: float, edges: float) -> "Degrees":
        """Return a graph whose edges fall anywhere: degrees follow Poisson's law."""
        mean = edges / nodes
        spread = 6 * np.sqrt(mean) + 6
        degree = np.unique(np.linspace(max(0.0, mean - spread), mean + spread, _CLASSES).round())
        log_factorials = np.array([math.lgamma(1 + one) for one in degree])
        log_share = degree * np.log(mean) - mean - log_factorials
        share = np.exp(log_share - log_share.max())
        return cls(nodes, share / share.sum(), degree, np.ones(degree.size))

    @classmethod
    def power_law(cls, nodes: float, edges: float, exponent: float = 2.3) -> "Degrees":
        """Return a graph whose degrees fall as ``degree ** -exponent``, and pull as they are.

        Source:
            Exponents between 2 and 3 are what is found in most large graphs: Clauset, Shalizi and
            Newman, "Power-Law Distributions in Empirical Data" (2009). The least degree follows
            from the mean, and the largest is the one that one node in ``nodes`` has.
        """
        mean = edges / nodes
        tail = np.logspace(0, np.log10(nodes) / (exponent - 1), _CLASSES)
        share = tail ** (1 - exponent)  # of a class on a logarithmic scale
        share /= share.sum()
        degree = tail * (mean / (share @ tail))
        return cls(nodes, share, degree, degree / mean)

    @classmethod
    def measured(cls, degrees: Array, pulls: Array | None = None) -> "Degrees":
        """Return a graph by the degrees of all nodes or of a sample of them.

        Args:
            degrees: ``[n]``, neighbours of each node.
            pulls: ``[n]``, how often each of them is a neighbour. None: as ``degrees``.
        """
        order = np.argsort(degrees, kind="stable")
        own = np.asarray(degrees, np.float64)
        others = own if pulls is None else np.asarray(pulls, np.float64)
        classes = np.array_split(order, min(_CLASSES * 4, own.size))
        share = np.array([part.size for part in classes]) / own.size
        degree = np.array([own[part].mean() for part in classes])
        pull = np.array([others[part].mean() for part in classes])
        return cls(float(own.size), share, degree, pull / max(others.mean(), 1e-12))


@dataclass(frozen=True)
class BatchSize:
    """What a batch is expected to have."""

    seeds: float
    nodes: float
    """Distinct, seeds included."""
    edges: float
    asked: float
    """Nodes that neighbours were drawn for: what is asked of partitions."""


def expect(degrees: Degrees, fanouts: Sequence[int], batch_size: int) -> BatchSize:
    """Return what a batch of k-hop neighbourhoods is expected to have.

    Args:
        degrees: The graph.
        fanouts: Neighbours per hop; -1: all.
        batch_size: Seeds, drawn from all nodes alike.

    Raises:
        ConfigError: A fanout is below -1, or there are more seeds than nodes.
    """
    if any(fanout < -1 for fanout in fanouts):
        raise ConfigError(f"fanouts must be -1 (all) or more, got {list(fanouts)}")
    if not 1 <= batch_size <= degrees.nodes:
        raise ConfigError(
            f"batch_size must be 1 to the number of nodes ({degrees.nodes:,.0f}), got {batch_size}"
        )
    log_missed = np.full(degrees.share.size, np.log1p(-min(batch_size / degrees.nodes, 1 - 1e-12)))
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
    return BatchSize(float(batch_size), nodes, edges, asked)
