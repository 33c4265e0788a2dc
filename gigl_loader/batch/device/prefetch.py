"""Batches on the device before they are needed, for any iterable of batches.

This file and `gigl_loader.batch.device.copy_stream` need torch and torch_geometric, and nothing
else of this package.

::

    loader --pull--> host batch --launch--> copy stream --hand over--> the consumer's stream
                         |                      |
                         +-- kept until --> event of the copy

CUDA copies while the host goes on only from pinned memory. torch pins memory that torch allocates.
The slots that batches arrive in are shared memory mapped by this package, so they are registered
with the CUDA runtime instead (`gigl_loader.runtime.memory.pinned`). Without CUDA nothing happens.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Final, Generic, TypeVar, cast

import torch
from torch import Tensor

from gigl_loader.batch.device.copy_stream import (
    CastMap,
    CopyEngine,
    CopyStats,
    PendingCopy,
    TorchBackend,
    full_device,
)
from gigl_loader.errors import ConfigError, NoEarlyEnd

__all__ = [
    "NOT_READY",
    "CopyAhead",
    "CopyEngine",
    "CopyStats",
    "DevicePrefetcher",
    "NotReady",
    "copy_message",
]

T = TypeVar("T")


class NotReady:
    """Result of a ``pull`` that was asked not to wait and has nothing; see `CopyAhead`."""


NOT_READY: Final = NotReady()


def copy_message(
    message: dict[str, Tensor],
    device: torch.device | str,
    *,
    cast: CastMap | None = None,
    engine: CopyEngine | None = None,
) -> dict[str, Tensor]:
    """Return a sample message with its tensors on ``device``; values never change.

    Args:
        message: Tensors by key; not modified.
        device: Where to.
        cast: As in `CopyEngine`; only without ``engine``, which has its own.
        engine: Copies through it, without waiting. None: one blocking copy per tensor.

    Raises:
        ConfigError: ``engine`` copies to another device, or ``cast`` came with it.
    """
    if engine is None:
        return CopyEngine(device, non_blocking=False, cast=cast).copy(message)
    if engine.device != full_device(device) or cast is not None:
        raise ConfigError(
            f"the engine copies to {engine.device} with its own casts; got device={device!s}, "
            f"cast={cast!r}: make the engine with them"
        )
    return engine.copy(message)


class CopyAhead(Iterator[T]):
    """Hands over batches whose copies were started ``depth`` batches earlier.

    An error of ``pull`` is raised after the batches that came before it. A batch counts as yielded
    when ``next()`` returns, not when it is pulled.

    Args:
        pull: ``pull(wait)`` returns the next host batch, or raises `StopIteration` at the end. With
            ``wait=False`` it may return `NOT_READY` instead of waiting: then a batch that is
            copied already is handed over at once.
        engine: Does the copying. If it does not overlap, ``depth`` counts as 0.
        depth: Batches to copy ahead of the one handed over.
        max_held: Host batches that may wait for their copies while ``pull`` waits for another;
            beyond it the host waits for the oldest copy. Where host memory is a fixed set of slots,
            do not go above their number. None: ``depth + 1``.
        run_ahead: Steps that the host may launch before the device is through with them, each with
            its batch in device memory. None: no limit.

    Raises:
        ConfigError: ``depth``, ``max_held`` or ``run_ahead`` is below 1.
    """

    def __init__(
        self,
        pull: Callable[[bool], T | NotReady],
        engine: CopyEngine,
        *,
        depth: int = 2,
        max_held: int | None = None,
        run_ahead: int | None = 4,
    ) -> None:
        _check_limits(depth=depth, max_held=max_held, run_ahead=run_ahead)
        self._pull, self._engine, self._run_ahead = pull, engine, run_ahead
        # Those copied ahead, and the one that is handed over while its copy is under way.
        self._max_held = depth + 1 if max_held is None else max_held
        # A blocking copy is done when it is launched: ahead, it would take memory and save nothing.
        self._depth = depth if engine.overlaps else 0
        self._ready: deque[PendingCopy[T]] = deque()
        self._end: Exception | None = None

    @property
    def num_ahead(self) -> int:
        """Batches pulled and not handed over yet."""
        return len(self._ready)

    def __iter__(self) -> "CopyAhead[T]":
        return self

    def __next__(self) -> T:
        with NoEarlyEnd("copying a batch"):
            if self._run_ahead is not None:
                # First: by now the consumer has launched all that it does with the batch before.
                self._engine.throttle(self._run_ahead)
            self._top_up()
            if self._ready:
                return self._engine.hand_over(self._ready.popleft())
        error, self._end = self._end or StopIteration(), StopIteration()
        try:
            # The sources are released before the loader is told of its end: their memory is then
            # unmapped after the copies.
            self._engine.close()
            raise error
        finally:
            del error  # the traceback holds this frame

    def close(self) -> None:
        """Drop batches under way, once the copies no longer need them. Idempotent."""
        self._end = StopIteration()
        self._ready.clear()
        self._engine.close()

    def __del__(self) -> None:
        if hasattr(self, "_end"):
            self.close()

    def _top_up(self) -> None:
        while self._end is None and len(self._ready) <= self._depth:
            try:
                if not self._launch_next():
                    return
            except StopIteration:
                self._end = StopIteration()  # without a traceback, which would hold this frame
            except Exception as error:
                # Kept for later: batches before it are whole, and are handed over first.
                self._end = error

    def _launch_next(self) -> bool:
        # a frame of its own, so that no local keeps the host batch alive
        # Before the pull: the loader may wait for the very slot that the oldest copy still reads.
        with NoEarlyEnd("copying a batch"):
            self._engine.make_room(self._max_held)
        # Waits only if there is nothing to hand over.
        source = self._pull(not self._ready)
        if isinstance(source, NotReady):
            return False
        with NoEarlyEnd("copying a batch"):
            self._ready.append(self._engine.launch(source))
        return True


class DevicePrefetcher(Generic[T]):
    """Yields the batches of ``loader`` on ``device``, copied while earlier ones are computed on.

    ::

        for batch in DevicePrefetcher(NeighborLoader(...), "cuda"):
            loss = step(model, batch)

    Any iterable of `Data`, `HeteroData`, tensors, or nests of them will do. Its batches should lie
    in pinned memory (``pin_memory=True`` of a `DataLoader`); from other memory the values are the
    same, but the host waits for each copy. Batches of the loader are never modified. To a CPU
    without ``cast`` they pass through unchanged.

    It has the attributes of the loader (``set_epoch``, ``dataset``...). Its ``state_dict`` counts
    the batches that the user got, without those prefetched.

    Args:
        loader: Source of the batches.
        device: Target of the copies.
        depth: Batches to copy ahead; each takes device memory.
        non_blocking: False: plain blocking copies, one batch at a time, same values.
        cast: As in ``CopyEngine``, e.g. ``{"x": torch.float32}`` for features stored as float16.
        max_held: As in ``CopyAhead``.
        run_ahead: As in ``CopyAhead``.
        backend: As in ``CopyEngine``.

    Raises:
        ConfigError: ``depth``, ``max_held`` or ``run_ahead`` is below 1.
        TypeError: ``cast`` is not a mapping to dtypes.
    """

    def __init__(
        self,
        loader: Iterable[T],
        device: torch.device | str,
        *,
        depth: int = 2,
        non_blocking: bool = True,
        cast: CastMap | None = None,
        max_held: int | None = None,
        run_ahead: int | None = 4,
        backend: TorchBackend | None = None,
    ) -> None:
        self.loader = loader
        self.engine = CopyEngine(device, non_blocking=non_blocking, cast=cast, backend=backend)
        self._limits = {"depth": depth, "max_held": max_held, "run_ahead": run_ahead}
        self._state: Any = None
        _check_limits(**self._limits)
        self._passes_through = self.engine.device.type == "cpu" and not cast and backend is None

    def __iter__(self) -> Iterator[T]:
        self._state = None
        if self._passes_through:
            # The state needs no counting then: the loader is never ahead of its reader.
            return iter(self.loader)
        return _LoaderPass(self, self._limits)

    def __len__(self) -> int:
        return len(cast("Sized", self.loader))

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not set yet: being unpickled or copied
            raise AttributeError(name)
        value = getattr(self.loader, name)
        # After the loader was asked: if it lacks the method, so does this object, and ``hasattr``
        # is right.
        wrapped = {"state_dict": self._state_dict, "load_state_dict": self._load_state_dict}
        return wrapped.get(name, value)

    def _state_dict(self) -> Any:
        return cast("Any", self.loader).state_dict() if self._state is None else self._state

    def _load_state_dict(self, state: Any, *given: Any, **how: Any) -> None:
        self._state = None
        cast("Any", self.loader).load_state_dict(state, *given, **how)


class _CountedSource(Generic[T]):
    """The loader's iterator, and the loader's state after each batch pulled from it."""

    def __init__(self, loader: Any) -> None:
        self._batches: Iterator[T] = iter(loader)
        self._loader = loader
        self._counts = callable(getattr(loader, "state_dict", None))
        self.states: deque[Any] = deque()

    def pull(self, wait: bool) -> T:
        try:
            batch = next(self._batches)
        except Exception:
            self._note_state()  # at the end too: the loader then says that its epoch is over
            raise
        self._note_state()
        return batch

    def close(self) -> None:
        # An iterator that is the loader itself goes on in the next pass: it is not ours to close.
        if self._batches is not self._loader and hasattr(self._batches, "close"):
            self._batches.close()

    def _note_state(self) -> None:
        if self._counts:
            with NoEarlyEnd("state_dict() of the loader"):
                self.states.append(self._loader.state_dict())


class _LoaderPass(Iterator[T]):
    """One pass of a `DevicePrefetcher`; in no reference cycle, so ``break`` ends it at once."""

    def __init__(self, owner: DevicePrefetcher[T], limits: dict[str, Any]) -> None:
        self._owner = owner
        self._source: _CountedSource[T] = _CountedSource(owner.loader)
        self._ahead: CopyAhead[T] = CopyAhead(self._source.pull, owner.engine, **limits)

    def __next__(self) -> T:
        try:
            batch = next(self._ahead)
        except Exception:
            self._publish_state()
            raise
        self._publish_state()
        return batch

    def close(self) -> None:
        """Stop; the batches under way are dropped once their copies are done."""
        self._ahead.close()
        self._source.close()

    def __del__(self) -> None:
        if hasattr(self, "_ahead"):
            self.close()

    def _publish_state(self) -> None:
        if self._source.states:
            self._owner._state = self._source.states.popleft()


def _check_limits(**limits: int | None) -> None:
    for name, value in limits.items():
        optional = name != "depth"
        if not (optional and value is None) and (not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name} must be an int >= 1, got {value!r}")
