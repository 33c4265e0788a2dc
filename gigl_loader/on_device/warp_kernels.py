"""A device's computations in NVIDIA Warp: its programs, launched on torch's current stream.

Nothing waits for the device, as all results have sizes that the host knows.
"""

from collections.abc import Sequence
from typing import Any

import torch
import warp as wp
from torch import Tensor

from gigl_loader.on_device.device_kernels import DeviceDraw, HopDrawn, TorchKernels
from gigl_loader.on_device.warp_programs import (
    PAGE_BITS,
    WORDS,
    draw_uniform,
    draw_whole_rows,
    draw_with_replacement,
    enter_keys,
    gather_rows,
    look_up_places,
)


class WarpKernels(TorchKernels):
    """Draws, and the first place of each key; the rest is torch's.

    Args:
        device: A CUDA device, or the CPU.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda" and device.index is None:  # Warp knows no current device of torch
            device = torch.device("cuda", torch.cuda.current_device())
        super().__init__(device)
        wp.init()
        self._on = wp.device_from_torch(device)

    def draw(self, request: DeviceDraw) -> HopDrawn:
        """Draw neighbours; the same ones, in the same order, as `LocalReader.draw`."""
        draw, adjacency, num_rows = request.draw, request.adjacency, request.rows.numel()
        offsets = torch.empty((num_rows, request.width), dtype=torch.int64, device=self.device)
        counts = torch.empty_like(request.rows)
        drawn = HopDrawn(offsets, counts)
        if not adjacency.indices.numel() or not request.width:
            offsets.zero_()
            counts.zero_()
            return drawn
        replace = draw.replace and draw.fanout >= 0
        weights = adjacency.weights if draw.with_weight else None
        question = (
            *map(self._array, (adjacency.indptr, request.rows, request.ids)),
            wp.from_torch(request.keys.contiguous(), wp.uint64),
        )
        result = wp.from_torch(offsets), self._array(counts)
        labor = draw.method == "labor"
        if labor or (weights is not None and not replace):
            values = torch.empty_like(offsets, dtype=torch.float64)
            narrow = adjacency.indices if adjacency.indices.dtype == torch.int32 else None
            wide = adjacency.indices if narrow is None else None
            self._launch(
                draw_whole_rows, num_rows, *question, int(labor),
                self._pages(weights, wp.float32), self._pages(narrow, wp.int32),
                self._pages(wide, wp.int64), wp.from_torch(values), *result,
            )  # fmt: skip
        elif weights is not None:
            self._launch(
                draw_with_replacement, num_rows, *question, self._pages(weights, wp.float32),
                *result,
            )  # fmt: skip
        else:
            times = request.times
            self._launch(
                draw_uniform, num_rows, *question, draw.fanout, int(replace), int(draw.last),
                int(times is not None),
                self._pages(None if times is None else times.times, wp.int64),
                self._pages(None if times is None else times.order, wp.int64),
                self._array(None if times is None else request.until),
                self._array(None if times is None else request.since), *result,
            )  # fmt: skip
        return drawn

    def gather(self, values: Tensor, rows: Tensor) -> Tensor:
        """Return ``values[rows]``; a GPU reads values in pinned memory of the host in place.

        Source:
            Unified virtual addressing: an address of pinned memory is one of the device, too (CUDA
            C++ Programming Guide, "Unified Virtual Address Space").
        """
        out = torch.empty((rows.numel(), *values.shape[1:]), dtype=values.dtype, device=self.device)
        if not out.numel():
            return out
        if values.is_cuda:
            return torch.index_select(values, 0, rows, out=out)
        row_bytes = out.nbytes // rows.numel()
        word = next(size for size in WORDS if row_bytes % size == 0)
        as_words, dtype = WORDS[word]
        words = out.view(rows.numel(), -1).view(as_words)
        self._launch(
            gather_rows, words.shape, self._pages(values, dtype, values.nbytes // word),
            self._array(rows), wp.from_torch(words),
        )  # fmt: skip
        return out

    def _first_places(self, keys: Tensor) -> Tensor:
        """Return the first place of each of ``keys``; 0 for those below 0."""
        positions = torch.empty_like(keys, dtype=torch.int32)
        # At most half full, so that a search reads few positions, and always reaches a free one.
        size = 1 << (2 * max(1, keys.numel()) - 1).bit_length()
        table = torch.zeros(size, dtype=torch.int64, device=self.device)
        firsts = torch.full((size,), keys.numel(), dtype=torch.int32, device=self.device)
        places = torch.empty_like(keys)
        num_keys, at = keys.numel(), wp.from_torch(positions)
        self._launch(
            enter_keys, num_keys, self._array(keys), wp.from_torch(table, wp.uint64),
            wp.from_torch(firsts), at,
        )  # fmt: skip
        self._launch(look_up_places, num_keys, wp.from_torch(firsts), at, self._array(places))
        return places

    def _launch(self, kernel: Any, threads: int | Sequence[int], *inputs: Any) -> None:
        stream = wp.stream_from_torch(self.device) if self.device.type == "cuda" else None
        wp.launch(kernel, dim=threads, inputs=inputs, device=self._on, stream=stream)

    def _array(self, values: Tensor | None) -> Any:
        """Return int64 values as Warp's array over the same memory; an empty one for None."""
        if values is None:
            return wp.empty(0, dtype=wp.int64, device=self._on)
        return wp.from_torch(values.contiguous())

    def _pages(self, values: Tensor | None, dtype: Any, count: int | None = None) -> Any:
        """Return an array as pages; the last one may go past the end, unread.

        Args:
            values: Contiguous; None: an empty array.
            dtype: Type of the items.
            count: Number of items; None: as many as ``values`` has.
        """
        if values is None:
            return wp.empty((0, 0), dtype=dtype, device=self._on)
        count = values.numel() if count is None else count
        return wp.array(
            ptr=values.data_ptr(), shape=(-(-count // (1 << PAGE_BITS)), 1 << PAGE_BITS),
            dtype=dtype, device=self._on, copy=False,
        )  # fmt: skip
