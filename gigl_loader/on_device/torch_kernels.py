"""The operations of `Kernels` in plain torch operators: on any device, and without an extra.

Every result has a size that the host knows, so no operator waits for the device: none whose
result's shape depends on values (``nonzero``, ``unique``, a boolean mask), and no value is read.
`tests/on_device/test_waits.py` runs all of it on tensors that have no values.
"""

import torch
from torch import Tensor

from gigl_loader.dataset.view import TimeOrder
from gigl_loader.on_device.device_kernels import DeviceDraw, DeviceDrawn, DeviceLabels
from gigl_loader.on_device.torch_numbers import row_keys, units
from gigl_loader.on_device.torch_weighted import draw_whole_rows

_LOWEST = torch.iinfo(torch.int64).min


class TorchKernels:
    """`Kernels` of any device that torch has.

    Args:
        device: Where all tensors are.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def draw(self, asked: DeviceDraw) -> DeviceDrawn:
        """Draw neighbours; the same ones, in the same order, as `LocalReader.draw`."""
        draw, adjacency, width = asked.draw, asked.adjacency, asked.width
        if not adjacency.indices.numel() or not width:
            # A gather has nothing to read from, not even for unused places.
            empty = torch.zeros((asked.rows.numel(), width), dtype=torch.int64, device=self.device)
            return DeviceDrawn(empty, torch.zeros_like(asked.rows))
        replace = draw.replace and draw.fanout >= 0  # all neighbours are all, once each
        starts, degrees = _rows(asked)
        places = torch.arange(width, device=self.device)
        if draw.labor or (draw.with_weight and adjacency.weights is not None):
            drawn, counts = draw_whole_rows(asked, starts, degrees)
            return DeviceDrawn(torch.where(places < counts[:, None], drawn, 0), counts)
        counts = _counts(degrees, draw.fanout, replace=replace)
        used = places < counts[:, None]
        drawn = places.expand(used.shape)  # the whole row, in stored order
        if draw.fanout >= 0:
            numbers = units(row_keys(draw.key, asked.ids)[:, None], places)
            if replace:
                drawn = (numbers * degrees[:, None].double()).long()
            else:
                some = _without_replacement(numbers, degrees, counts)
                drawn = torch.where((counts < degrees)[:, None], some, drawn)
        offsets = torch.where(used, starts[:, None] + drawn, 0)
        if asked.times is not None:  # positions in the order of times, to those of edges
            offsets = torch.where(used, asked.times.order[offsets], 0)
        return DeviceDrawn(offsets, counts)

    def append(self, labels: DeviceLabels, keys: Tensor) -> None:
        """Give each of ``keys`` (``[n]`` int64) a label of its own, repeats too."""
        at = labels.count + torch.arange(keys.numel(), device=self.device)
        labels.keys.scatter_(0, at, keys)
        labels.count = labels.count + keys.numel()

    def label(self, labels: DeviceLabels, keys: Tensor, valid: Tensor) -> Tensor:
        """Return the label of each of ``keys``; those without one get the next free ones."""
        capacity, num_keys = labels.keys.numel(), keys.numel()
        # Places in order of appearance: labels first, so that a known key's first place is its
        # label. Unused ones hold -1, which is no key.
        every = torch.cat([labels.keys, torch.where(valid, keys, -1)])
        first = self._first_places(every)[capacity:]
        places = torch.arange(capacity, capacity + num_keys, device=self.device)
        is_new = valid & (first == places)
        ranks = is_new.long().cumsum(0) - 1
        # The first place of a new key in ``keys``; known keys have any place, as it is not used.
        known, first_here = first < capacity, (first - capacity).clamp(min=0)
        found = torch.where(known, first, labels.count + ranks[first_here])
        # All valid places write: a repeat writes the same as its first place, so the order does
        # not matter. Invalid ones write to a place past the end.
        room = torch.cat([labels.keys, labels.keys.new_zeros(1)])
        room.scatter_(0, torch.where(valid, found, capacity), every[capacity:])
        labels.keys.copy_(room[:capacity])
        labels.count = labels.count + is_new.sum()
        return torch.where(valid, found, -1)

    def gather(self, values: Tensor, rows: Tensor) -> Tensor:
        """Return ``values[rows]``; for values on the host the ids go there, and the host waits."""
        if values.device == rows.device:
            return values.index_select(0, rows)
        return values.index_select(0, rows.to(values.device)).to(rows.device)

    def _first_places(self, keys: Tensor) -> Tensor:
        """Return the first place of each of ``keys``; any place for those below 0."""
        places = torch.arange(keys.numel(), device=keys.device)
        ordered, order = torch.sort(keys, stable=True)
        starts = torch.ones_like(keys, dtype=torch.bool)
        starts[1:] = ordered[1:] != ordered[:-1]
        # A stable sort keeps equal keys in the order of their places: a run starts with the first.
        run = torch.where(starts, places, 0).cummax(0).values
        return torch.empty_like(keys).scatter_(0, order, order[run])


def _rows(asked: DeviceDraw) -> tuple[Tensor, Tensor]:
    """Return ([n] start of each row, [n] its degree), cut to its time limits."""
    indptr, draw = asked.adjacency.indptr, asked.draw
    num_rows = indptr.numel() - 1
    # -1 and rows past the end come to one position, and so to a degree of 0
    starts = indptr[asked.rows.clamp(0, num_rows)].long()
    stops = indptr[(asked.rows + 1).clamp(0, num_rows)].long()
    if asked.times is None:
        return starts, stops - starts
    order = asked.times
    if asked.until is not None:
        stops = _first_after(order, starts, stops, asked.until)
    if asked.since is not None:
        # Times are integers: times after ``since - 1`` are not before ``since``. The lowest integer
        # has none below it.
        later = _first_after(order, starts, stops, asked.since - 1)
        starts = torch.where(asked.since > _LOWEST, later, starts)
    if draw.last and draw.fanout >= 0:
        starts = torch.maximum(starts, stops - draw.fanout)
    return starts, stops - starts


def _counts(degrees: Tensor, fanout: int, *, replace: bool) -> Tensor:
    """Return the number of neighbours drawn from rows of ``degrees``."""
    if fanout < 0:
        return degrees
    return torch.where(degrees > 0, fanout, 0) if replace else degrees.clamp(max=fanout)


def _without_replacement(numbers: Tensor, degrees: Tensor, counts: Tensor) -> Tensor:
    """Return ``[n, width]`` draws by Floyd's method; see `compiled.draw_uniform`."""
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
