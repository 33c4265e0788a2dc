"""A device's computations for a batch: draws and labels, in tensors whose sizes the host knows.

A host that asked the device for the size of each result would wait for it at every hop. So a result
has its largest possible size, known from the fan-outs, and its unused places are marked. Two
implementations return the same bits as `sampler.kernels.sampling_kernels` on the CPU:
`TorchKernels` in plain operators, for any device and without an extra, and
`warp_kernels.WarpKernels`, compiled, for CUDA (and, in tests, for the CPU).

No plain operator waits for the device: none whose result's shape depends on values (``nonzero``,
``unique``, a boolean mask), and no value is read. `tests/sampler/gpu/device_waits.py` counts those
that do.

Draws by weight, and LABOR, read whole rows. A host that does not wait knows no bound of a row's
length but the largest of all rows. So rows are read side by side, column after column up to that
length, whatever their own. On a graph with hubs that is slow, and Warp is faster.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gigl_loader.dataset.partition.partition_view import Adjacency, TimeOrder
from gigl_loader.sampler.gpu.torch_numbers import exponentials, row_keys, units
from gigl_loader.sampler.plan import Draw

_LOWEST, _LAST = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
_BLOCK = 256
"""Columns that are read at once: for 100,000 rows, 200 MB for each intermediate number."""


@dataclass(frozen=True)
class DeviceDraw:
    """A request for neighbours of some nodes, on one device except for the numbers."""

    draw: Draw
    """How to draw; its key is in ``keys``."""
    adjacency: Adjacency[Tensor]
    rows: Tensor
    """``[n]`` int64, the row of each node in the adjacency; below 0: an unused place."""
    ids: Tensor
    """``[n]`` int64, the key of each row's draw: the node's id, in disjoint trees
    ``id + tree * nodes of the type``."""
    keys: Tensor
    """``[n]`` int64, the key of each row's draw, a uint64 of the same bits; ``[1]``: of all."""
    width: int
    """Most neighbours of a row: the fan-out or, if that is -1, the largest degree."""
    times: TimeOrder[Tensor] | None = None
    """Rows by time, if the draw is by time."""
    until: Tensor | None = None
    """``[n]`` int64, the latest time of a neighbour; None: any."""
    since: Tensor | None = None
    """``[n]`` int64, the earliest; None: any."""
    largest_degree: int | None = None
    """Most edges of a row of the adjacency. Only weighted draws and LABOR need it: they read whole
    rows, however few neighbours they draw."""


@dataclass(frozen=True)
class HopEdges:
    """The edges drawn in one hop over one edge type."""

    edges: Tensor
    """``[n, width]`` int64, what `DeviceGraph.edge_ids` turns into ids; kernels return positions in
    the adjacency (canonical order, also where drawn by time). A row's draws are its first places,
    the rest is 0."""
    neighbors: Tensor
    """``[n, width]`` int64, global ids; -1 in places that are not used."""


@dataclass(frozen=True)
class HopDrawn(HopEdges):
    """The edges, and how many there are of each row."""

    counts: Tensor
    """``[n]`` int64."""


@dataclass
class DeviceLabels:
    """The nodes of a batch by label: in each type 0, 1, 2... in order of first appearance.

    Types have an order, and lie behind each other: so all of them are labelled at once.
    """

    keys: Tensor
    """``[capacity]`` int64: ids, or ``tree << bits | id`` of disjoint trees; the first ones of each
    type are nodes, the rest is -1."""
    counts: Tensor
    """``[num_types]`` int64, on the device: the nodes of each type."""
    begins: list[int]
    """``[num_types + 1]``, where the keys of each type begin, and the end."""
    device_begins: Tensor
    """`begins` as int64 on the device."""


@dataclass(frozen=True)
class TypedPlaces:
    """How many places each type has, of places that lie type after type."""

    sizes: list[int]
    """``[num_types]``."""
    device_ends: Tensor
    """``[num_types]`` int64, on the device: where the places of each type end."""


class TorchKernels:
    """The operations in plain operators, on any device that torch has.

    One object per sampling thread, as those in Warp own scratch memory. None of them waits for the
    device, unless its docstring says so.

    Args:
        device: Where all tensors are.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def draw(self, request: DeviceDraw) -> HopDrawn:
        """Draw neighbours; the same ones, in the same order, as `LocalReader.draw`."""
        draw, adjacency, width = request.draw, request.adjacency, request.width
        if not adjacency.indices.numel() or not width:
            return none_drawn(request)
        replace = draw.replace and draw.fanout >= 0  # all neighbours are all, once each
        starts, degrees = _rows(request)
        places = torch.arange(width, device=self.device)
        if draw.method == "labor" or (draw.with_weight and adjacency.weights is not None):
            drawn, counts = _draw_whole_rows(request, starts, degrees)
            return self._with_neighbors(request, drawn, counts)
        counts = _counts(degrees, draw.fanout, replace=replace)
        used = places < counts[:, None]
        drawn = places.expand(used.shape)  # the whole row, in stored order
        if draw.fanout >= 0:
            numbers = units(row_keys(request.keys, request.ids)[:, None], places)
            if replace:
                drawn = (numbers * degrees[:, None].double()).long()
            else:
                chosen = _without_replacement(numbers, degrees, counts)
                drawn = torch.where((counts < degrees)[:, None], chosen, drawn)
        offsets = torch.where(used, starts[:, None] + drawn, 0)
        if request.times is not None:  # positions in the order of times, to those of edges
            offsets = request.times.order[offsets]
        return self._with_neighbors(request, offsets, counts)

    def scratch_bytes(self, width: int, largest_degree: int) -> int:
        """Return the bytes that a draw from whole rows keeps for parts of long ones.

        Args:
            width: Most neighbours of a row.
            largest_degree: Most edges of a row.
        """
        return 0

    def _with_neighbors(self, request: DeviceDraw, offsets: Tensor, counts: Tensor) -> HopDrawn:
        """Return a draw with its neighbours; ``offsets`` has any number in unused places."""
        used = torch.arange(request.width, device=self.device) < counts[:, None]
        offsets = torch.where(used, offsets, 0)
        neighbors = torch.where(used, self.items(request.adjacency.indices, offsets), -1)
        return HopDrawn(offsets, neighbors, counts)

    def label(self, labels: DeviceLabels, keys: Tensor, places: TypedPlaces) -> Tensor:
        """Return the label of each of ``keys``; those without one get the next free ones.

        Args:
            labels: Labels of all types; new ones are added to it.
            keys: ``[n]`` int64, type after type; -1: an unused place. The capacity suffices for all
                others.
            places: How many keys each type has.

        Returns:
            ``[n]`` int64; a repeated key has the label of its first place; -1 in unused places.
        """
        results, counts = list[Tensor](), list[Tensor]()
        for at, of_type in enumerate(keys.split(places.sizes)):
            known = labels.keys[labels.begins[at] : labels.begins[at + 1]]
            results.append(self._label_type(known, labels.counts[at], of_type, counts))
        labels.counts = torch.stack(counts)
        return torch.cat(results)

    def _label_type(
        self, known: Tensor, count: Tensor, keys: Tensor, counts: list[Tensor]
    ) -> Tensor:
        """Label keys of one type, add new ones to ``known``, and their number to ``counts``."""
        capacity, num_keys = known.numel(), keys.numel()
        if not num_keys:
            counts.append(count)
            return keys
        # Places in order of appearance: labels first, so that a known key's first place is its
        # label. Unused ones hold -1, which is no key.
        every, valid = torch.cat([known, keys]), keys >= 0
        first = self._first_places(every)[capacity:]
        places = torch.arange(capacity, capacity + num_keys, device=self.device)
        is_new = valid & (first == places)
        ranks = is_new.long().cumsum(0) - 1
        # The first place of a new key in ``keys``; known keys have any place, as it is not used.
        is_known, first_here = first < capacity, (first - capacity).clamp(min=0)
        key_labels = torch.where(is_known, first, count + ranks[first_here])
        # All valid places write: a repeat writes the same as its first place, so the order does
        # not matter. Invalid ones write to a place past the end.
        room = torch.cat([known, known.new_zeros(1)])
        room.scatter_(0, torch.where(valid, key_labels, capacity), keys)
        known.copy_(room[:capacity])
        counts.append(count + is_new.sum())
        return torch.where(valid, key_labels, -1)

    def gather(self, values: Tensor, rows: Tensor) -> Tensor:
        """Return ``values[rows]``; for values on the host the ids go there, and the host waits.

        Args:
            values: ``[num_rows, ...]``, on the device or in pinned memory of the host.
            rows: ``[n]`` int64, on the device.
        """
        return _read(values, rows)

    def items(self, values: Tensor, places: Tensor) -> Tensor:
        """Return ``values[places]`` as int64, of values that lie where `gather` reads them.

        Args:
            values: ``[n]``, ids.
            places: int64, of any shape, on the device.
        """
        return self.gather(values, places.reshape(-1)).view(places.shape).long()

    def _first_places(self, keys: Tensor) -> Tensor:
        """Return the first place of each of ``keys``; any place for those below 0."""
        places = torch.arange(keys.numel(), device=keys.device)
        ordered, order = torch.sort(keys, stable=True)
        starts = torch.ones_like(keys, dtype=torch.bool)
        starts[1:] = ordered[1:] != ordered[:-1]
        # A stable sort keeps equal keys in the order of their places: a run starts with the first.
        run = torch.where(starts, places, 0).cummax(0).values
        return torch.empty_like(keys).scatter_(0, order, order[run])


def none_drawn(request: DeviceDraw) -> HopDrawn:
    """Return the draw where no row has a neighbour: a gather would have nothing to read from."""
    offsets = torch.zeros(
        (request.rows.numel(), request.width), dtype=torch.int64, device=request.rows.device
    )
    return HopDrawn(offsets, torch.full_like(offsets, -1), torch.zeros_like(request.rows))


def _read(values: Tensor, places: Tensor) -> Tensor:
    """Return ``values[places]`` on the device of ``places``; see `TorchKernels.gather`."""
    rows = values.index_select(0, places.reshape(-1).to(values.device)).to(places.device)
    return rows.view(*places.shape, *values.shape[1:])


def _rows(request: DeviceDraw) -> tuple[Tensor, Tensor]:
    """Return ([n] start of each row, [n] its degree), cut to its time limits."""
    indptr, draw = request.adjacency.indptr, request.draw
    num_rows = indptr.numel() - 1
    # -1 and rows past the end come to one position, and so to a degree of 0
    starts = indptr[request.rows.clamp(0, num_rows)].long()
    stops = indptr[(request.rows + 1).clamp(0, num_rows)].long()
    if request.times is None:
        return starts, stops - starts
    order = request.times
    if request.until is not None:
        stops = _first_after(order, starts, stops, request.until)
    if request.since is not None:
        # Times are integers: times after ``since - 1`` are not before ``since``. The lowest integer
        # has none below it.
        later = _first_after(order, starts, stops, request.since - 1)
        starts = torch.where(request.since > _LOWEST, later, starts)
    if draw.last and draw.fanout >= 0:
        starts = torch.maximum(starts, stops - draw.fanout)
    return starts, stops - starts


def _counts(degrees: Tensor, fanout: int, *, replace: bool) -> Tensor:
    """Return the number of neighbours drawn from rows of ``degrees``."""
    if fanout < 0:
        return degrees
    return torch.where(degrees > 0, fanout, 0) if replace else degrees.clamp(max=fanout)


def _without_replacement(numbers: Tensor, degrees: Tensor, counts: Tensor) -> Tensor:
    """Return ``[n, width]`` draws by Floyd's method; see `sampling_kernels.draw_uniform`."""
    drawn = torch.zeros_like(numbers, dtype=torch.int64)
    for place in range(numbers.shape[1]):
        last = degrees - counts + place
        choice = (numbers[:, place] * (last + 1).double()).long()
        taken = (drawn[:, :place] == choice[:, None]).any(1)
        drawn[:, place] = torch.where(taken, last, choice)
    return drawn


def _first_after(order: TimeOrder[Tensor], starts: Tensor, stops: Tensor, times: Tensor) -> Tensor:
    """Return the first place of each row whose time is above that of ``times``; its end if none."""
    # As many steps as the longest possible row needs: the host knows no other bound.
    for _ in range(order.times.numel().bit_length()):
        middle = (starts + stops) >> 1
        searched = starts < stops
        # an empty row may end behind the last edge
        early = order.times[middle.clamp(max=order.times.numel() - 1)] <= times
        starts = torch.where(searched & early, middle + 1, starts)
        stops = torch.where(searched & ~early, middle, stops)
    return starts


# -- draws that read whole rows ------------------------------------------------------------------


def _draw_whole_rows(request: DeviceDraw, starts: Tensor, degrees: Tensor) -> tuple[Tensor, Tensor]:
    """Return (``[n, width]`` positions, ``[n]`` number of draws of each row), all int64.

    Places past a row's count hold any number. See `weighted_kernels.draw_weighted` and
    `weighted_kernels.draw_labor`.
    """
    draw = request.draw
    if draw.replace and draw.fanout >= 0 and draw.method != "labor":
        return _with_replacement(request, starts, degrees)
    width = request.width
    possible = torch.zeros_like(degrees)
    values = torch.empty((degrees.numel(), 0), dtype=torch.float64, device=degrees.device)
    chosen = torch.empty((degrees.numel(), 0), dtype=torch.int64, device=degrees.device)
    for offsets, inside, uniform in _numbers(request, starts, degrees):
        sort_keys = uniform
        if draw.with_weight and request.adjacency.weights is not None:
            weights = request.adjacency.weights[offsets]
            inside = inside & (weights > 0)
            sort_keys = exponentials(uniform) / weights.double()
        possible += inside.sum(1)
        # The smallest so far beside the next ones. Stable: among equal numbers the earlier
        # position.
        values = torch.cat([values, torch.where(inside, sort_keys, torch.inf)], 1)
        values, order = torch.sort(values, dim=1, stable=True)
        chosen = torch.cat([chosen, offsets], 1).gather(1, order)[:, :width]
        values = values[:, :width]
    counts = possible if draw.fanout < 0 else possible.clamp(max=draw.fanout)
    used = torch.arange(width, device=degrees.device) < counts[:, None]
    # Ascending: places that are not drawn go to the end.
    return torch.where(used, chosen, _LAST).sort(1).values, counts


def _columns(
    request: DeviceDraw, starts: Tensor, degrees: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ``[b]`` columns and ``[n, b]`` positions there, up to the longest row; 0 past a row."""
    longest = request.largest_degree
    assert longest is not None, "draws by weight and LABOR read whole rows"
    for begin in range(0, max(longest, request.width), _BLOCK):
        end = min(begin + _BLOCK, max(longest, request.width))
        columns = torch.arange(begin, end, device=starts.device)
        inside = columns < degrees[:, None]
        yield columns, torch.where(inside, starts[:, None] + columns, 0)


def _numbers(
    request: DeviceDraw, starts: Tensor, degrees: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield positions, whether they are in the row, and their random numbers, block by block."""
    draw, indices = request.draw, request.adjacency.indices
    keys = None if draw.method == "labor" else row_keys(request.keys, request.ids)[:, None]
    run = torch.zeros_like(starts)[:, None]
    """The column where the latest run of parallel edges begins."""
    for columns, offsets in _columns(request, starts, degrees):
        inside = columns < degrees[:, None]
        if keys is not None:
            yield offsets, inside, units(keys, columns)
            continue
        neighbors = _read(indices, offsets).long()
        before = _read(indices, (offsets - 1).clamp(min=0)).long()
        begins = torch.where((neighbors != before) | (columns == 0), columns, 0)
        runs = torch.cat([run, begins], 1).cummax(1).values[:, 1:]
        run = runs[:, -1:]
        # the copy among parallel edges: they lie side by side
        yield offsets, inside, units(row_keys(request.keys[:, None], neighbors), columns - runs)


def _with_replacement(
    request: DeviceDraw, starts: Tensor, degrees: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw by weight with replacement.

    Sums of float64 depend on the order of additions, which `torch.cumsum` chooses by device. So
    each column is added in turn, as on the CPU: one rounded sum at a time, the same everywhere.
    """
    weights = request.adjacency.weights
    assert weights is not None
    total = torch.zeros_like(starts, dtype=torch.float64)
    is_positive = torch.zeros_like(starts, dtype=torch.bool)
    for weight in _weights_in_turn(request, weights, starts, degrees):
        total = total + weight
        is_positive |= weight > 0
    places = torch.arange(request.width, device=starts.device)
    goals = units(row_keys(request.keys, request.ids)[:, None], places) * total[:, None]
    position = torch.zeros_like(goals, dtype=torch.int64)
    total = torch.zeros_like(total)
    for weight in _weights_in_turn(request, weights, starts, degrees):
        total = total + weight
        position += total[:, None] <= goals
    # Only weights that are not finite get past the end, where the CPU takes the last position.
    drawn = starts[:, None] + torch.minimum(position, (degrees - 1)[:, None])
    return drawn, torch.where(is_positive, request.draw.fanout, 0)


def _weights_in_turn(
    request: DeviceDraw, weights: Tensor, starts: Tensor, degrees: Tensor
) -> Iterator[Tensor]:
    """Yield the weights of all rows (float64) in each column; 0 past the end of a row."""
    for columns, offsets in _columns(request, starts, degrees):
        block = weights[offsets].double()
        block = torch.where(columns < degrees[:, None], block, 0.0)
        yield from block.unbind(1)
