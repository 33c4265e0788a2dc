"""Draws that read whole rows, in plain torch operators: by weight, and LABOR.

A host that does not wait knows no bound of a row's length but the largest of all rows. So rows are
read side by side, column after column up to that length, whatever their own. On a graph with hubs
that is slow, and `gigl_loader.on_device.warp_kernels` is faster.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from gigl_loader.on_device.device_kernels import DeviceDraw
from gigl_loader.on_device.torch_numbers import exponentials, row_keys, units

_BLOCK = 256
"""Columns that are read at once: for 100,000 rows, 200 MB for each intermediate number."""
_LAST = torch.iinfo(torch.int64).max


def draw_whole_rows(asked: DeviceDraw, starts: Tensor, degrees: Tensor) -> tuple[Tensor, Tensor]:
    """Return (``[n, width]`` positions, ``[n]`` number of draws of each row), all int64.

    Places past a row's count hold any number. See `weighted_kernels.draw_weighted` and
    `weighted_kernels.draw_labor`.
    """
    draw = asked.draw
    if draw.replace and draw.fanout >= 0 and not draw.labor:
        return _with_replacement(asked, starts, degrees)
    width = asked.width
    possible = torch.zeros_like(degrees)
    values = torch.empty((degrees.numel(), 0), dtype=torch.float64, device=degrees.device)
    chosen = torch.empty((degrees.numel(), 0), dtype=torch.int64, device=degrees.device)
    for offsets, inside, uniform in _numbers(asked, starts, degrees):
        found = uniform
        if draw.with_weight and asked.adjacency.weights is not None:
            weights = asked.adjacency.weights[offsets]
            inside = inside & (weights > 0)
            found = exponentials(uniform) / weights.double()
        possible += inside.sum(1)
        # The smallest so far beside the next ones. Stable: among equal numbers the earlier
        # position.
        values = torch.cat([values, torch.where(inside, found, torch.inf)], 1)
        values, order = torch.sort(values, dim=1, stable=True)
        chosen = torch.cat([chosen, offsets], 1).gather(1, order)[:, :width]
        values = values[:, :width]
    counts = possible if draw.fanout < 0 else possible.clamp(max=draw.fanout)
    used = torch.arange(width, device=degrees.device) < counts[:, None]
    # Ascending: places that are not drawn go to the end.
    return torch.where(used, chosen, _LAST).sort(1).values, counts


def _columns(asked: DeviceDraw, starts: Tensor, degrees: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ``[b]`` columns and ``[n, b]`` positions there, up to the longest row; 0 past a row."""
    longest = asked.largest_degree
    assert longest is not None, "draws by weight and LABOR read whole rows"
    for begin in range(0, max(longest, asked.width), _BLOCK):
        end = min(begin + _BLOCK, max(longest, asked.width))
        columns = torch.arange(begin, end, device=starts.device)
        inside = columns < degrees[:, None]
        yield columns, torch.where(inside, starts[:, None] + columns, 0)


def _numbers(
    asked: DeviceDraw, starts: Tensor, degrees: Tensor
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield positions, whether they are in the row, and their random numbers, block by block."""
    draw, indices = asked.draw, asked.adjacency.indices
    keys = None if draw.labor else row_keys(draw.key, asked.ids)[:, None]
    run = torch.zeros_like(starts)[:, None]
    """The column where the latest run of parallel edges begins."""
    for columns, offsets in _columns(asked, starts, degrees):
        inside = columns < degrees[:, None]
        if keys is not None:
            yield offsets, inside, units(keys, columns)
            continue
        neighbors = indices[offsets].long()
        before = indices[(offsets - 1).clamp(min=0)].long()
        begins = torch.where((neighbors != before) | (columns == 0), columns, 0)
        runs = torch.cat([run, begins], 1).cummax(1).values[:, 1:]
        run = runs[:, -1:]
        # the copy among parallel edges: they lie side by side
        yield offsets, inside, units(row_keys(draw.key, neighbors), columns - runs)


def _with_replacement(asked: DeviceDraw, starts: Tensor, degrees: Tensor) -> tuple[Tensor, Tensor]:
    """Draw by weight with replacement.

    Sums of float64 depend on the order of additions, which `torch.cumsum` chooses by device. So
    each column is added in turn, as on the CPU: one rounded sum at a time, the same everywhere.
    """
    weights = asked.adjacency.weights
    assert weights is not None
    total = torch.zeros_like(starts, dtype=torch.float64)
    some = torch.zeros_like(starts, dtype=torch.bool)
    for weight in _weights_in_turn(asked, weights, starts, degrees):
        total = total + weight
        some |= weight > 0
    places = torch.arange(asked.width, device=starts.device)
    goals = units(row_keys(asked.draw.key, asked.ids)[:, None], places) * total[:, None]
    position = torch.zeros_like(goals, dtype=torch.int64)
    total = torch.zeros_like(total)
    for weight in _weights_in_turn(asked, weights, starts, degrees):
        total = total + weight
        position += total[:, None] <= goals
    # Only weights that are not finite get past the end, where the CPU takes the last position.
    drawn = starts[:, None] + torch.minimum(position, (degrees - 1)[:, None])
    return drawn, torch.where(some, asked.draw.fanout, 0)


def _weights_in_turn(
    asked: DeviceDraw, weights: Tensor, starts: Tensor, degrees: Tensor
) -> Iterator[Tensor]:
    """Yield the weights of all rows (float64) in each column; 0 past the end of a row."""
    for columns, offsets in _columns(asked, starts, degrees):
        block = weights[offsets].double()
        block = torch.where(columns < degrees[:, None], block, 0.0)
        yield from block.unbind(1)
