"""A device's computations in NVIDIA Warp: its programs, launched on torch's current stream.

Nothing waits for the device, as all results have sizes that the host knows.

Warp is not made for several threads: its table of streams and the loading of modules have no lock.
Two loaders may sample in two threads, so this module calls Warp's runtime under a lock of its own.
"""

import threading
from collections.abc import Sequence
from typing import Any

import torch
import warp as wp
from torch import Tensor

from gigl_loader.batch.device.copy_stream import capture_stream
from gigl_loader.sampler.gpu import warp_programs
from gigl_loader.sampler.gpu.device_kernels import (
    DeviceDraw,
    DeviceLabels,
    HopDrawn,
    TorchKernels,
    TypedPlaces,
    none_drawn,
)
from gigl_loader.sampler.gpu.warp_programs import (
    PAGE_BITS,
    WORDS,
    draw_long_rows,
    draw_uniform,
    draw_whole_rows,
    draw_with_replacement,
    enter_keys,
    give_labels,
    join_long_rows,
    mark_new,
)

_runtime = threading.RLock()
_streams: dict[tuple[int, int], Any] = {}
"""Warp's stream for each stream of torch, by device and handle. Kept: to make one enters it into
Warp's table, and to drop it removes it there, also under a kernel that another thread launches."""
_LONG_ROW, _PARTS = 4096, 128
"""Edges of a row above which its parts have threads of their own, and how many."""
_LONG_ROWS, _SCRATCH_BYTES = 1024, 64 << 20
"""Most of these rows in a draw, further ones have a thread each; memory for what parts choose."""
_MOST_KNOWN = 4096
"""Descriptors of arrays that are kept: those of a graph, and of rows that are read once."""


def reason_against(device: torch.device) -> str | None:
    """Return why Warp cannot compute on a device; None: it can.

    Warp is built for one release of CUDA, and has no devices under an older driver; torch may be
    built for an older one, and have them.
    """
    with _runtime:
        wp.init()
    if device.type != "cuda":
        return None if wp.is_cpu_available() else "NVIDIA Warp is here without its CPU compiler"
    index = device.index
    if index is None and wp.get_cuda_device_count():
        index = torch.cuda.current_device()
    if index is None or index >= wp.get_cuda_device_count():
        return f"NVIDIA Warp {wp.__version__} has no {device}: {_driver_of_warp()}"
    arch, least = wp.get_cuda_device(index).arch, min(wp.get_cuda_supported_archs(), default=0)
    if arch < least:
        return (
            f"NVIDIA Warp {wp.__version__} compiles for sm_{least} and later, and {device} is of "
            f"sm_{arch}: install a release of Warp for an older CUDA"
        )
    return None


def _driver_of_warp() -> str:
    """Return the release of CUDA that Warp needs a driver of, and that of the driver."""
    toolkit, driver = wp.get_cuda_toolkit_version(), wp.get_cuda_driver_version()
    if toolkit is None:
        return "it is built without CUDA"
    needed = f"it needs a driver of CUDA {toolkit[0]}"
    if driver is None:
        return f"{needed}, and finds none"
    if driver[0] >= toolkit[0]:
        return f"its driver of CUDA {driver[0]}.{driver[1]} has fewer devices than torch's"
    return (
        f"{needed}, and this one is of CUDA {driver[0]}.{driver[1]}: update the driver, or install "
        f"a release of Warp for CUDA {driver[0]}"
    )


def _most_long_rows(width: int, largest_degree: int) -> int:
    """Return how many rows of a draw have their parts chosen side by side."""
    if largest_degree <= _LONG_ROW or not width:
        return 0
    return min(_LONG_ROWS, _SCRATCH_BYTES // (_PARTS * width * 16))  # a value and a position each


class WarpKernels(TorchKernels):
    """Draws, labels, and rows that lie on the host; the rest is torch's.

    Args:
        device: A CUDA device that `reason_against` has nothing against, or the CPU.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type == "cuda" and device.index is None:  # Warp knows no current device of torch
            device = torch.device("cuda", torch.cuda.current_device())
        super().__init__(device)
        self._has_streams = device.type == "cuda"
        self._known_pages: dict[tuple[int, int, Any], Any] = {}
        # Warp leaves the device current that it loads a module for
        with _runtime, torch.cuda.device(device if self._has_streams else -1):
            wp.init()
            self._on = wp.device_from_torch(device)
            # Now, and not with the first launch: that would be in the middle of an epoch, in any
            # thread, and loading may wait for a device that is in an exchange.
            wp.load_module(warp_programs, device=self._on)
            if self._has_streams:  # Warp makes an event for each stream that it is new to
                with torch.cuda.stream(capture_stream(device)):
                    self._stream()

    def draw(self, request: DeviceDraw) -> HopDrawn:
        """Draw neighbours; the same ones, in the same order, as `LocalReader.draw`."""
        draw, adjacency, num_rows = request.draw, request.adjacency, request.rows.numel()
        if not adjacency.indices.numel() or not request.width:
            return none_drawn(request)
        offsets = torch.empty((num_rows, request.width), dtype=torch.int64, device=self.device)
        drawn = HopDrawn(offsets, torch.empty_like(offsets), torch.empty_like(request.rows))
        replace = draw.replace and draw.fanout >= 0
        weights = adjacency.weights if draw.with_weight else None
        question = adjacency.indptr, request.rows, request.ids, request.keys
        is_narrow = adjacency.indices.dtype == torch.int32
        indices = (
            self._pages(adjacency.indices if is_narrow else None, wp.int32),
            self._pages(None if is_narrow else adjacency.indices, wp.int64),
        )
        result = offsets, drawn.counts, drawn.neighbors
        labor = draw.method == "labor"
        if labor or (weights is not None and not replace):
            weight_pages = self._pages(weights, wp.float32)
            self._draw_whole_rows(request, [*question, int(labor), weight_pages, *indices], drawn)
        elif weights is not None:
            self._launch(
                draw_with_replacement,
                (num_rows, request.width),
                *question,
                self._pages(weights, wp.float32),
                *indices,
                *result,
            )
        else:
            times = request.times
            self._launch(
                draw_uniform,
                num_rows,
                *question,
                draw.fanout,
                int(replace),
                int(draw.last),
                int(times is not None),
                self._pages(None if times is None else times.times, wp.int64),
                self._pages(None if times is None else times.order, wp.int64),
                None if times is None else request.until,
                None if times is None else request.since,
                *indices,
                *result,
            )
        return drawn

    def _draw_whole_rows(
        self, request: DeviceDraw, question: Sequence[Any], drawn: HopDrawn
    ) -> None:
        """Draw by weight without replacement, or by LABOR.

        With a thread for each row, a batch would wait for that of a hub. So where there are hubs,
        parts of a long row have a thread each, and another one joins them.
        """
        num_rows, width = drawn.edges.shape
        num_long = 0
        if request.draw.fanout >= 0:  # without a fan-out nothing is chosen
            num_long = min(num_rows, _most_long_rows(width, request.largest_degree or 0))
        result = drawn.edges, drawn.counts, drawn.neighbors
        values = torch.empty_like(drawn.edges, dtype=torch.float64)
        long_rows = torch.zeros(1 + num_long, dtype=torch.int32, device=self.device)
        self._launch(draw_whole_rows, num_rows, *question, values, _LONG_ROW, long_rows, *result)
        if not num_long:
            return
        parts = torch.empty((num_long * _PARTS, width), dtype=torch.float64, device=self.device)
        scratch = parts, torch.empty_like(parts, dtype=torch.int64)
        sizes = torch.empty((num_long, _PARTS), dtype=torch.int32, device=self.device)
        self._launch(draw_long_rows, (num_long, _PARTS), *question, long_rows, *scratch, sizes)
        indices = question[-2:]
        self._launch(
            join_long_rows, num_long, long_rows, *scratch, sizes, *indices, values, *result
        )

    def scratch_bytes(self, width: int, largest_degree: int) -> int:
        """Return the bytes that a draw from whole rows keeps for parts of long ones."""
        return _most_long_rows(width, largest_degree) * _PARTS * (16 * width + 4)

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
        # a GPU reads no word at an address that is no multiple of its size
        word = next(size for size in WORDS if row_bytes % size == values.data_ptr() % size == 0)
        as_words, dtype, gather_words = WORDS[word]
        words = out.view(rows.numel(), -1).view(as_words)
        self._launch(
            gather_words,
            words.shape,
            self._pages(values, dtype, values.nbytes // word),
            rows,
            words,
        )
        return out

    def label(self, labels: DeviceLabels, keys: Tensor, places: TypedPlaces) -> Tensor:
        """Return the label of each of ``keys``; those without one get the next free ones."""
        capacity, num_keys = labels.keys.numel(), keys.numel()
        if not num_keys:
            return keys
        total = capacity + num_keys
        table = torch.zeros(2 * total, dtype=torch.int64, device=self.device)
        firsts = torch.full((2 * total,), total, dtype=torch.int32, device=self.device)
        positions, is_new = (torch.empty_like(keys, dtype=torch.int32) for _ in range(2))
        by_type = labels.device_begins, places.device_ends
        self._launch(enter_keys, total, labels.keys, keys, *by_type, table, firsts, positions)
        self._launch(mark_new, num_keys, capacity, firsts, positions, is_new)
        ranks = is_new.cumsum(0, dtype=torch.int32)
        results, new_counts = torch.empty_like(keys), torch.empty_like(labels.counts)
        self._launch(
            give_labels,
            num_keys + new_counts.numel(),
            keys,
            *by_type,
            labels.counts,
            firsts,
            positions,
            ranks,
            labels.keys,
            results,
            new_counts,
        )
        labels.counts = new_counts
        return results

    def _launch(self, kernel: Any, threads: int | Sequence[int], *inputs: Any) -> None:
        """Launch a program; tensors among ``inputs`` are its arrays, None is an empty one.

        Warp gets descriptors, which keep no memory: they take a fraction of the time of its arrays.
        """
        # held here until it is launched; after that a stream's memory is used in its order
        tensors = [one.contiguous() if isinstance(one, Tensor) else one for one in inputs]
        with _runtime:
            arguments = [
                wp.from_torch(one, return_ctype=True) if isinstance(one, Tensor) else one
                for one in tensors
            ]
            wp.launch(kernel, dim=threads, inputs=arguments, device=self._on, stream=self._stream())

    def _stream(self) -> Any:
        """Return Warp's stream for the current one of torch; None: the device has none."""
        if not self._has_streams:
            return None
        current = torch.cuda.current_stream(self.device)
        key = current.device_index, current.cuda_stream
        if key not in _streams:
            _streams[key] = wp.stream_from_torch(current)
        return _streams[key]

    def _pages(self, values: Tensor | None, dtype: Any, count: int | None = None) -> Any:
        """Return the descriptor of an array as pages; the last one may go past the end, unread.

        Args:
            values: Contiguous; None: an empty array.
            dtype: Type of the items.
            count: Number of items; None: as many as ``values`` has.
        """
        if values is None:
            return None
        count = values.numel() if count is None else count
        # By what it says, so that it is right whatever is at that address.
        known = values.data_ptr(), count, dtype
        with _runtime:
            if known not in self._known_pages:
                if len(self._known_pages) >= _MOST_KNOWN:
                    self._known_pages.clear()
                pages = wp.array(
                    ptr=known[0],
                    shape=(-(-count // (1 << PAGE_BITS)), 1 << PAGE_BITS),
                    dtype=dtype,
                    device=self._on,
                    copy=False,
                )
                self._known_pages[known] = pages.__ctype__()
            return self._known_pages[known]
