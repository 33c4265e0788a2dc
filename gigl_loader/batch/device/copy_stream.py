"""Copies to a device on a stream of their own, without letting go of their sources too early.

This file needs torch and torch_geometric, and nothing else of this package. Each rule prevents one
kind of silent corruption:

* The copy runs on a stream of its own, which does not wait for compute.
* The host batch is referenced until the event behind its copy has completed: only then may the
  pinned memory under it be written again.
* The consumer's stream waits for that event before the batch is handed over.
* Every copied tensor is recorded on the consumer's stream: only then may its device memory, which
  belongs to the copy stream, be used again.

The host never waits for a stream or a device. It waits for one old event: of a copy in
`CopyEngine.make_room`, of compute in `CopyEngine.throttle`.
"""

import copy
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.profiler import record_function
from torch_geometric.data.data import BaseData

from gigl_loader.errors import ConfigError, WrongTypeError

logger = logging.getLogger(__name__)

T = TypeVar("T")
CastMap = Mapping[Any, torch.dtype]


class TorchBackend:
    """The operations needed of a CUDA device; other devices get only blocking copies.

    The tests have one that delays and reorders like a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.copy_stream: Any = side_stream(device)

    def holds(self, tensor: Tensor) -> bool:
        """Return whether ``tensor`` is on the device already."""
        return tensor.device == self.device

    def current_stream(self) -> Any:
        """Return the stream that the calling thread launches work on."""
        return torch.cuda.current_stream(self.device)

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        """Launch on ``stream`` inside the block."""
        return torch.cuda.stream(stream)

    def copy(self, tensor: Tensor, *, non_blocking: bool) -> Tensor:
        """Return a copy of ``tensor`` on the device, made by the stream in use."""
        return tensor.to(self.device, non_blocking=non_blocking)

    def cast(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return ``tensor``, which is on the device, in another dtype."""
        return tensor.to(dtype)

    def record_event(self, stream: Any) -> Any:
        """Return an event behind all work launched on ``stream`` so far."""
        # blocking: a host that waits for it sleeps
        event = torch.cuda.Event(blocking=True)
        event.record(stream)
        return event

    def wait_event(self, stream: Any, event: Any) -> None:
        """Let ``stream``, not the host, wait for ``event``."""
        stream.wait_event(event)

    def record_stream(self, tensor: Tensor, stream: Any) -> None:
        """Keep the memory of ``tensor``, once freed, until ``stream`` is through with it."""
        for part in plain_parts(tensor):
            part.record_stream(stream)


def side_stream(device: torch.device) -> Any:
    """Return a stream for work ahead of the model; None: the device has none.

    Its kernels are short, and the next step waits for them: of blocks that are ready, a device
    starts theirs before the model's, which otherwise fill it.
    """
    if device.type != "cuda":
        return None
    kept = capture_stream(device)
    stream = torch.cuda.Stream(device, priority=-1)
    # they are given out in turn: the next is another one
    return torch.cuda.Stream(device, priority=-1) if stream == kept else stream


_capture_streams: dict[torch.device, Any] = {}
_one_is_made = threading.Lock()


def capture_stream(device: torch.device) -> Any:
    """Return the stream of a CUDA device that captures alone are launched on.

    torch has 32 streams for each priority, and gives them out again and again: what another thread
    launches on a stream that is captured becomes part of that graph, and is not done.
    """
    with _one_is_made:  # before any other, so that none is the same
        if device not in _capture_streams:
            _capture_streams[device] = torch.cuda.Stream(device, priority=-1)
        return _capture_streams[device]


def plain_parts(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the strided tensors that make up ``tensor``: those that own memory."""
    if hasattr(tensor, "__tensor_flatten__"):  # a wrapper, such as EdgeIndex of torch_geometric
        for name in tensor.__tensor_flatten__()[0]:
            yield from plain_parts(getattr(tensor, name))
        return
    methods = {
        torch.sparse_coo: ("_indices", "_values"),
        torch.sparse_csr: ("crow_indices", "col_indices", "values"),
        torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
        torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
        torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
    }.get(tensor.layout)
    yield from [getattr(tensor, method)() for method in methods] if methods else [tensor]


class _Transfer:
    """Rebuilds one batch with its tensors on the device; the source stays as it is."""

    def __init__(
        self,
        backend: TorchBackend,
        *,
        non_blocking: bool,
        cast: CastMap,
        keep: Callable[[Any], bool],
    ) -> None:
        self.backend, self.non_blocking, self.cast, self.keep = backend, non_blocking, cast, keep
        # Taken before the copy stream is in use: after that, it is the current one.
        self.consumer = backend.current_stream() if non_blocking else None
        self.made: list[Tensor] = []
        # Kept while the copies read them, and for `_memo`: a mapping may make its tensors when
        # they are read, and a new one may have the id of one that is gone.
        self.sources: list[Tensor] = []
        self.nbytes = 0
        self._memo: dict[tuple[int, torch.dtype | None], Tensor] = {}
        self._waits_for_consumer = False

    def value(self, value: Any, dtype: torch.dtype | None = None) -> Any:
        """Return ``value`` with every tensor in it on the device, floats cast to ``dtype``."""
        if isinstance(value, Tensor):
            return self._tensor(value, dtype)
        if isinstance(value, BaseData):
            return self._data(value, dtype)
        if isinstance(value, Mapping):
            return self._mapping(value, dtype)
        if isinstance(value, list | tuple | deque):
            return self._sequence(value, dtype)
        return self._foreign(value)

    def _tensor(self, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
        key = (id(tensor), dtype)  # names of one tensor stay names of one tensor
        if key not in self._memo:
            self.sources.append(tensor)
            self._memo[key] = self._new_tensor(tensor, dtype)
        return self._memo[key]

    def _new_tensor(self, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
        out = tensor
        if self.backend.holds(tensor):
            self._wait_for_consumer()
        else:
            out = self.backend.copy(tensor, non_blocking=self.non_blocking)
            self.nbytes += tensor.numel() * tensor.element_size()
        if dtype is not None and out.dtype != dtype:
            out = self.backend.cast(out, dtype)
        # Only tensors made here belong to the copy stream. Those already on the device are the
        # loader's, and are not recorded.
        if out is not tensor:
            self.made.append(out)
        return out

    def _wait_for_consumer(self) -> None:
        # work that may not have run yet made the tensors that are on the device already
        if self.non_blocking and not self._waits_for_consumer:
            event = self.backend.record_event(self.consumer)
            self.backend.wait_event(self.backend.copy_stream, event)
            self._waits_for_consumer = True

    def _data(self, data: BaseData, dtype: torch.dtype | None) -> BaseData:
        out = copy.copy(data)  # stores are copied with it, tensors are not
        for store in out.stores:
            for name, value in list(store.items()):
                # The narrower name first: ("user", "x") before "x".
                wanted = self.cast.get((store._key, name), self.cast.get(name, dtype))
                moved = value if self.keep(name) else self.value(value, wanted)
                if moved is not value:
                    store[name] = moved
        return out

    def _mapping(self, values: Mapping[Any, Any], dtype: torch.dtype | None) -> Any:
        moved = {
            key: value if self.keep(key) else self.value(value, self._cast_of(key, dtype))
            for key, value in values.items()
        }
        # A mapping that cannot be copied and changed becomes a plain dict.
        if type(values) is dict or not isinstance(values, MutableMapping):
            return moved
        out = copy.copy(values)
        out.update(moved)
        return out

    def _sequence(self, values: Any, dtype: torch.dtype | None) -> Any:
        moved = [self.value(item, dtype) for item in values]
        # Lists of ids or names stay the same object, like everything without tensors.
        if all(new is old for new, old in zip(moved, values, strict=True)):
            return values
        return type(values)(*moved) if hasattr(values, "_fields") else type(values)(moved)

    def _cast_of(self, key: Any, inherited: torch.dtype | None) -> torch.dtype | None:
        dtype = self.cast.get(key)
        if dtype is None and isinstance(key, str):  # messages: "<type>.<name>"
            dtype = self.cast.get(key.rpartition(".")[2])
        return inherited if dtype is None else dtype

    def _foreign(self, value: Any) -> Any:
        # e.g. a SparseTensor: it cannot be recorded on a stream, so the consumer's stream copies it
        if isinstance(value, type) or not callable(getattr(value, "to", None)):
            return value
        # A module is moved in place by ``to``: the loader's own would change. The tests' backend
        # has no device.
        device = getattr(self.backend, "device", None)
        if device is None or isinstance(value, torch.nn.Module):
            return value
        if not self.non_blocking:
            return value.to(device)
        with self.backend.use(self.consumer):
            return value.to(device)


@dataclass(slots=True)
class CopyStats:
    """Counts of a `CopyEngine` since its start."""

    batches: int = 0
    copied_bytes: int = 0
    host_waits: int = 0
    """Times the host had to wait for an old copy. Growing with ``batches``: the copies are the
    bottleneck, or ``max_held`` is too small."""
    throttled: int = 0
    """Times the host had to wait for old compute: it is that far ahead of the device."""


@dataclass(slots=True)
class PendingCopy(Generic[T]):
    """A batch whose copy is under way. Only `CopyEngine.hand_over` may look inside."""

    item: T
    made: list[Tensor] = field(default_factory=list)
    event: Any = None


class CopyEngine:
    """Starts copies on a stream of their own and keeps their sources until they are done.

    For one thread. `close` before the memory under the sources is unpinned or unmapped.

    Args:
        device: Where to. A device other than CUDA gets plain blocking copies.
        non_blocking: False: copy on the consumer's stream and wait, with the same result.
        cast: Dtypes to deliver by attribute or message key, converted on the device after the copy:
            ``{"x": torch.float32}``, for one type ``{("user", "x"): torch.float32}``. A name
            covers all tensors under it.
        keep_on_host: Keys for which this returns True are not copied.
        backend: The device's operations; None for torch's.
    """

    def __init__(
        self,
        device: torch.device | str,
        *,
        non_blocking: bool = True,
        cast: CastMap | None = None,
        keep_on_host: Callable[[Any], bool] | None = None,
        backend: TorchBackend | None = None,
    ) -> None:
        self.device = full_device(device)
        self.cast: CastMap = _checked_cast(cast)
        self.stats = CopyStats()
        self._keep = keep_on_host or (lambda key: False)
        self._backend: TorchBackend = backend or TorchBackend(self.device)
        self.overlaps = non_blocking and self._backend.copy_stream is not None
        # In the order of their copies: one stream passes their events in that order, so the first
        # one that has not passed ends every search.
        self._held: deque[tuple[Any, Any]] = deque()
        self._unfinished: deque[Any] = deque()

    @property
    def num_held(self) -> int:
        """Sources still referenced, as of the last `reap`."""
        return len(self._held)

    def launch(self, source: T) -> PendingCopy[T]:
        """Start the copy of ``source``, a batch or any nest of tensors; return at once.

        The caller drops its own reference to ``source``. On an error the copies that were started
        still keep it.
        """
        with record_function("gigl_loader.copy"):
            if not self.overlaps:
                transfer = self._transfer(non_blocking=False)
                pending = PendingCopy(transfer.value(source))
            else:
                transfer = self._transfer(non_blocking=True)
                pending = self._launch_on_copy_stream(source, transfer)
        self.stats.batches += 1
        self.stats.copied_bytes += transfer.nbytes
        return pending

    def hand_over(self, pending: PendingCopy[T]) -> T:
        """Return the copied batch, safe to use on the stream that is current now."""
        if pending.event is not None:
            consumer = self._backend.current_stream()
            self._wait(consumer, pending.event)
            self._record(consumer, pending.made)
        return pending.item

    def copy(self, source: T) -> T:
        """`launch` and `hand_over` in one: for callers that do not prefetch."""
        self.reap()
        return self.hand_over(self.launch(source))

    def reap(self) -> int:
        """Drop the sources whose copies are done, without waiting; return how many are held."""
        while self._held and self._held[0][0].query():
            self._held.popleft()
        return len(self._held)

    def make_room(self, max_held: int) -> None:
        """Wait for the oldest copies until fewer than ``max_held`` sources are held."""
        # `reap` before each wait: copies that were done meanwhile cost none.
        while self.reap() >= max_held:
            self.stats.host_waits += 1
            self._held[0][0].synchronize()
            self._held.popleft()

    def throttle(self, run_ahead: int) -> None:
        """Mark the end of what the consumer launched; wait while over ``run_ahead`` marks are open.

        Without it a loop that never waits for its device could launch tens of steps ahead, each
        with a batch in device memory. The device has ``run_ahead`` steps queued: it does not idle.
        """
        if not self.overlaps:
            return
        marks = self._unfinished
        marks.append(self._backend.record_event(self._backend.current_stream()))
        while marks and marks[0].query():
            marks.popleft()
        while len(marks) > run_ahead:
            self.stats.throttled += 1
            marks.popleft().synchronize()

    def close(self) -> None:
        """Wait for the copies under way and drop their sources. The engine stays usable."""
        try:
            self.make_room(1)
        except RuntimeError as error:  # the device failed: nothing reads the sources any more
            logger.warning("could not wait for copies to %s: %s", self.device, error)
        self._held.clear()
        self._unfinished.clear()

    def _transfer(self, *, non_blocking: bool) -> _Transfer:
        return _Transfer(self._backend, non_blocking=non_blocking, cast=self.cast, keep=self._keep)

    def _launch_on_copy_stream(self, source: T, transfer: _Transfer) -> PendingCopy[T]:
        stream = self._backend.copy_stream
        try:
            with self._backend.use(stream):
                item = transfer.value(source)
        finally:
            # Also after an error: copies that were started read the source until this event.
            event = self._backend.record_event(stream)
            self._hold(event, (source, transfer.sources))
        return PendingCopy(item, transfer.made, event)

    # the three safeguards, one method each: the tests leave each out and see the damage

    def _hold(self, event: Any, source: Any) -> None:
        self._held.append((event, source))

    def _wait(self, consumer: Any, event: Any) -> None:
        self._backend.wait_event(consumer, event)

    def _record(self, consumer: Any, tensors: list[Tensor]) -> None:
        for tensor in tensors:
            self._backend.record_stream(tensor, consumer)


def full_device(device: torch.device | str | int) -> torch.device:
    """Return ``device`` with its index, that of the current device where none is given.

    Raises:
        ConfigError: torch has no such device.
    """
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"device={device!r} is no torch device: {error}") from None
    # Compared with the devices of tensors, which have an index; and fixed now, as the current
    # device is another one in another thread.
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _checked_cast(cast: CastMap | None) -> CastMap:
    if cast is None:
        return {}
    if not isinstance(cast, Mapping) or not all(isinstance(t, torch.dtype) for t in cast.values()):
        raise WrongTypeError(f"cast must map names to torch dtypes, got {cast!r}")
    return dict(cast)
