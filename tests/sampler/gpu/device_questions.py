"""Questions for a device, drawn by hypothesis, and what the compiled kernels of the CPU answer."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from gigl_loader.dataset.partition.partition_view import (
    Adjacency,
    PartitionView,
    TimeOrder,
    keys_of,
)
from gigl_loader.sampler.gpu.device_kernels import DeviceDraw, TorchKernels
from gigl_loader.sampler.gpu.torch_numbers import signed
from gigl_loader.sampler.plan import Draw, TreesAndTimes
from gigl_loader.sampler.rows.reader import LocalReader
from tests.sampler.gpu.device_waits import waits_counted

EDGE_TYPE = ("node", "to", "node")
LOWEST, HIGHEST = -(2**63), 2**63 - 1
KEYS = st.integers(0, 2**64 - 1) | st.sampled_from([0, 1, 2**63 - 1, 2**63, 2**64 - 1])


@dataclass(frozen=True)
class Question:
    """A draw over one partition; ``ids`` are of nodes that it has rows for, and past the end."""

    view: PartitionView[Any]
    draw: Draw
    ids: np.ndarray
    asked: TreesAndTimes | None

    def on_cpu(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (positions, counts) by the compiled kernels; edge ids are positions here."""
        drawn = LocalReader(self.view).draw(self.draw, self.ids, self.asked)
        assert drawn.edge_ids is not None
        return drawn.edge_ids, drawn.counts

    def on_device(self, unused: np.ndarray, largest_degree: int | None = None) -> DeviceDraw:
        """Return the same question of tensors, with a place of no node where ``unused`` says so."""
        adjacency = self.view.adjacency[EDGE_TYPE]
        degrees = np.diff(adjacency.indptr)
        largest = int(degrees.max(initial=0)) if largest_degree is None else largest_degree
        order = self.view.times.get(EDGE_TYPE) if self.draw.timed else None
        asked = self.asked or TreesAndTimes(np.zeros_like(self.ids))
        spread: list[Any] = [
            None if column is None else _spread(column, unused, fill)
            for column, fill in [
                (self.ids - adjacency.first_row, -1),
                (self.ids + asked.tree * self.view.num_nodes["node"], 7),
                (asked.until, HIGHEST),
                (asked.since, LOWEST),
            ]
        ]
        return DeviceDraw(
            self.draw,
            Adjacency(
                torch.from_numpy(adjacency.indptr),
                torch.from_numpy(adjacency.indices),
                None,
                None if adjacency.weights is None else torch.from_numpy(adjacency.weights),
            ),
            rows=spread[0],
            ids=spread[1],
            keys=torch.tensor([signed(self.draw.key)]),
            width=self.draw.fanout if self.draw.fanout >= 0 else largest,
            times=None
            if order is None
            else TimeOrder(
                torch.from_numpy(order.order), torch.from_numpy(order.times), order.is_float
            ),
            until=spread[2],
            since=spread[3],
            largest_degree=largest,
        )

    def check(self, kernels: TorchKernels, unused: np.ndarray, largest_degree: Any = None) -> None:
        """Make sure that ``kernels`` draw the positions that the CPU draws."""
        offsets, counts = self.on_cpu()
        asked = self.on_device(unused, largest_degree)
        with waits_counted() as waits:
            drawn = kernels.draw(asked)
        assert not +waits, "the host would wait for its device"
        assert drawn.edges.dtype == drawn.counts.dtype == torch.int64
        assert drawn.edges.shape == (unused.size, asked.width)
        wanted = np.zeros(unused.size, np.int64)
        wanted[~unused] = counts
        assert drawn.counts.tolist() == wanted.tolist()
        used = np.arange(asked.width) < wanted[:, None]
        assert drawn.edges.numpy()[used].tolist() == offsets.tolist()
        assert not drawn.edges.numpy()[~used].any(), "places that are unused hold 0"
        indices = self.view.adjacency[EDGE_TYPE].indices
        assert drawn.neighbors.numpy()[used].tolist() == indices[offsets].tolist()
        assert (drawn.neighbors.numpy()[~used] == -1).all()


def view_of(
    adjacency: Adjacency[Any], num_nodes: int, order: TimeOrder[Any] | None = None
) -> PartitionView[Any]:
    """Return a partition of one edge type, whose edge ids are positions."""
    times = {} if order is None else {EDGE_TYPE: order}
    return PartitionView(
        False, "in", 1, 0, {"node": num_nodes}, {EDGE_TYPE: adjacency}, times=times
    )


def draw_of(fanout: int, key: int, **how: Any) -> Draw:
    """Return a question for neighbours and the edges that lead to them."""
    return Draw(EDGE_TYPE, fanout, key, with_edge=True, **how)


def _spread(column: np.ndarray, unused: np.ndarray, fill: int) -> torch.Tensor:
    found = np.full(unused.size, fill, np.int64)
    found[~unused] = column
    return torch.from_numpy(found)


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Yield questions of small graphs: empty rows, hubs, parallel edges, all kinds of draw."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    degrees = draw(st.lists(st.integers(0, 9) | st.sampled_from([40, 300]), max_size=8))
    indptr = np.concatenate([[0], np.cumsum(degrees)]).astype(np.int64)
    first_row, past = draw(st.sampled_from([0, 5])), draw(st.integers(1, 3))
    num_nodes = first_row + len(degrees) + past
    indices = np.concatenate(
        [np.empty(0, np.int64), *(np.sort(rng.integers(0, num_nodes, size)) for size in degrees)]
    ).astype(draw(st.sampled_from([np.int32, np.int64])))
    kind = draw(st.sampled_from(["uniform", "timed", "weighted", "labor"]))
    order = _order(draw, rng, indptr) if kind == "timed" else None
    with_weight = kind == "weighted" or (kind == "labor" and draw(st.booleans()))
    replace = kind != "labor" and draw(st.booleans())
    weights = _weights(draw, rng, indices.size) if with_weight else None
    if weights is not None and not replace:
        # Not allowed to users, but a way to two numbers that are equal: 0 each.
        weights[rng.random(indices.size) < draw(st.sampled_from([0, 0.3]))] = np.inf
    how = draw_of(
        draw(st.integers(-1, 10)),
        draw(KEYS),
        replace=replace,
        with_weight=with_weight,
        method="labor" if kind == "labor" else "uniform",
        timed=kind == "timed",
        last=kind == "timed" and draw(st.booleans()),
    )
    adjacency = Adjacency(indptr, indices, None, weights, first_row=first_row, first_edge=0)
    view = view_of(adjacency, num_nodes, order)
    ids = np.array(draw(st.lists(st.integers(first_row, num_nodes - 1), max_size=12)), np.int64)
    return Question(view, how, ids, _asked(draw, rng, ids.size, kind))


def _weights(draw: st.DrawFn, rng: np.random.Generator, size: int) -> np.ndarray:
    """Return weights of one of three kinds: a few equal ones, of any size, the least there are."""
    kind = draw(st.sampled_from(["few", "wide", "least"]))
    if kind == "few":
        return rng.integers(0, 3, size).astype(np.float32)
    if kind == "wide":
        return np.exp(rng.normal(0, 8, size)).astype(np.float32)
    return (rng.integers(0, 5, size) * 2.0**-149).astype(np.float32)


def _order(draw: st.DrawFn, rng: np.random.Generator, indptr: np.ndarray) -> TimeOrder[Any]:
    is_float = draw(st.booleans())
    size = int(indptr[-1])
    times = rng.integers(-3, 4, size)  # ties on purpose
    if is_float:
        some = np.array([-np.inf, -1.5, -0.0, 0.0, 1e-300, 2.5, np.inf])
        keys = keys_of(some[times + 3], is_float=True)
    else:
        some = np.array([LOWEST, LOWEST + 1, -1, 0, 1, HIGHEST - 1, HIGHEST])
        keys = some[times + 3]
    order = np.arange(size)
    for start, stop in itertools.pairwise(indptr):
        order[start:stop] = start + np.argsort(keys[start:stop], kind="stable")
    return TimeOrder(order, keys[order], is_float)


def _asked(draw: st.DrawFn, rng: np.random.Generator, size: int, kind: str) -> TreesAndTimes | None:
    if kind == "labor" or (kind != "timed" and draw(st.booleans())):
        return None
    trees = rng.integers(0, 1000, size)
    if kind != "timed":
        return TreesAndTimes(trees)
    limits = np.array([LOWEST, LOWEST + 1, -2, -1, 0, 1, 2**62, HIGHEST])
    since = rng.choice(limits, size) if draw(st.booleans()) else None
    return TreesAndTimes(trees, rng.choice(limits, size), since)
