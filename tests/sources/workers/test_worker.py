"""One worker in this process, on one end of a socket; the test is its trainer."""

import contextlib
import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gigl_loader.batch.leases import ShmChannel
from gigl_loader.batch.message import (
    AT_ONCE_EPOCH,
    AT_ONCE_STREAM,
    BATCH,
    INPUT_ID,
    NODE,
    Attempt,
    BatchTicket,
)
from gigl_loader.batch.slots import Written
from gigl_loader.runtime.memory import segments, tensors
from gigl_loader.runtime.transport import Security, sockets
from gigl_loader.sampler.plan import Field
from gigl_loader.sampler.sampler_kinds import SamplerKind
from gigl_loader.sources.workers import pipe
from gigl_loader.sources.workers import worker as module
from gigl_loader.sources.workers.peers import Access
from gigl_loader.sources.workers.pipe import Plugins, WorkerSetup, pickled
from gigl_loader.sources.workers.worker import Worker, keep_freed_memory
from gigl_loader.testing import TinyGraph
from tests.sources.workers.fake_workers import make_producer, send_object

SEEDS = torch.arange(30, 40)
ALONE: tuple = (pipe.PEERS, "rank 0 worker 3", None, {}, False, False)


class _Exited(BaseException):
    """Stands in for the end of the process."""


def _exit(code: int) -> None:
    raise _Exited(code)


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch, libc_is: Callable[..., None]) -> Iterator[WorkerSetup]:
    """What a trainer tells a worker, which leaves this process as it is."""
    libc_is()  # none that keeps freed memory
    monkeypatch.setattr(module, "os", SimpleNamespace(_exit=_exit, close=os.close))
    producer, pool = make_producer(TinyGraph.random(50, 300).dataset(), SEEDS, batch_size=4)
    yield pool.setup
    producer.shutdown()


class _Trainer:
    """The other end; the worker's main thread is one of this process."""

    def __init__(self, setup: WorkerSetup, listener: int | None = None) -> None:
        self.sock, self._theirs = pipe.pair()
        self.sock.settimeout(60.0)
        send_object(self.sock, *tensors.dumps(setup))
        pipe.send(self.sock, (pipe.PLACE, listener is not None), [listener] if listener else [])
        self.worker = Worker(self._theirs, 3)
        self.channel = ShmChannel(8, 2**30)
        self._threads = setup.concurrency
        self._main = threading.Thread(target=self._run)

    def _run(self) -> None:
        with contextlib.suppress(_Exited):
            self.worker.run()

    def start(self) -> None:
        """Let it sample."""
        self.worker.prepare()
        assert self.hear() == (pipe.READY, None)
        self.tell(ALONE)
        self._main.start()

    def tell(self, message: tuple[Any, ...], order: torch.Tensor | None = None) -> None:
        pipe.send(self.sock, message)
        if order is not None:
            send_object(self.sock, *tensors.dumps(order))

    def ask(self, ticket: BatchTicket, free: tuple[int, ...] = ()) -> Any:
        """Return what it answers to one task; a batch comes as (message, slot)."""
        self.tell((pipe.TASK, ticket, list(free), []))
        return self.answer()

    def answer(self) -> Any:
        received = pipe.receive(self.sock)
        assert received is not None
        message, fds = received
        if message[0] != pipe.BATCH:
            return message
        _, _, slot, nbytes, retired, layout, stats = message
        assert {"seeds", "idle_s", "sample_s", "gather_s", "ended_ns"} <= stats.keys()
        written = Written(slot, nbytes, fds[0] if fds else None, retired, layout)
        found = self.channel.open(0, written)
        segments.close_fds(fds)
        return found, slot

    def hear(self) -> Any:
        received = pipe.receive(self.sock)
        assert received is not None
        message, fds = received
        assert fds == []
        return message

    def close(self) -> None:
        pipe.end(self.sock)
        if self._main.ident is not None:
            self._main.join(60.0)
        for _ in range(self._threads):
            self.worker._tasks.put(None)
        self.sock.close()
        self._theirs.close()
        self.channel.close()


@pytest.fixture
def trainer(setup: WorkerSetup) -> Iterator[_Trainer]:
    found = _Trainer(setup)
    yield found
    found.close()


def _ticket(batch: int, serial: int = 1, stream: int = 0) -> BatchTicket:
    return BatchTicket(stream, serial, 6, batch)


def test_batches_are_those_of_the_input_in_its_order(trainer: _Trainer) -> None:
    trainer.start()
    trainer.tell((pipe.ATTEMPT, 0, Attempt(6, 1), False))
    for batch, positions in enumerate((range(4), range(4, 8), range(8, 10))):
        message, _ = trainer.ask(_ticket(batch))
        assert message[INPUT_ID].tolist() == list(positions), "the last one is incomplete"
        assert message[BATCH].tolist() == SEEDS[list(positions)].tolist()


def test_an_epoch_has_an_order_of_its_own_and_single_batches_any_size(trainer: _Trainer) -> None:
    trainer.start()
    order = torch.arange(9, -1, -1)
    trainer.tell((pipe.ATTEMPT, 0, Attempt(6, 2), True), order)
    message, _ = trainer.ask(_ticket(1, serial=2))
    assert message[INPUT_ID].tolist() == [5, 4, 3, 2]
    trainer.tell(
        (pipe.ATTEMPT, AT_ONCE_STREAM, Attempt(AT_ONCE_EPOCH, 1), True),
        torch.tensor([7, 7, 0, 1, 2, 3]),
    )
    message, _ = trainer.ask(BatchTicket(AT_ONCE_STREAM, 1, AT_ONCE_EPOCH, 0))
    assert message[BATCH].tolist() == [37, 37, 30, 31, 32, 33]


def test_what_is_of_another_epoch_is_not_sampled(trainer: _Trainer) -> None:
    trainer.start()
    trainer.tell((pipe.ATTEMPT, 0, Attempt(6, 3), False))
    for stale in (_ticket(0, serial=2), _ticket(0, serial=4), _ticket(0, 3, stream=1)):
        assert trainer.ask(stale) == (pipe.STALE, stale)
    message, _ = trainer.ask(_ticket(0, serial=3))
    assert message[BATCH].tolist() == [30, 31, 32, 33]


def test_a_slot_that_came_back_takes_the_very_next_batch(trainer: _Trainer) -> None:
    trainer.start()
    trainer.tell((pipe.ATTEMPT, 0, Attempt(6, 1), False))
    held, slot = trainer.ask(_ticket(0))
    other, second = trainer.ask(_ticket(1))
    assert (slot, second) == (0, 1), "none is free"
    del other
    free, _ = trainer.channel.returned(0, 2)
    _, third = trainer.ask(_ticket(2), tuple(free))
    assert third == 1
    assert held[BATCH].tolist() == [30, 31, 32, 33]


class _Failing:
    """A user's sampler that knows one batch it cannot sample."""

    def __init__(self, view: Any, plan: Any, peers: Any, *, bad: int) -> None:
        self.view, self.plan, self.peers, self._bad = view, plan, peers, bad

    def sample(self, request: Any) -> list[Any]:
        if request.ticket.batch == self._bad:
            raise ArithmeticError("not this one")
        if request.ticket.batch == self._bad + 1:
            raise OSError(28, "No space left on device")
        if request.ticket.batch == self._bad + 2:
            raise ValueError("x" * 10**6)
        return [
            Field.of(NODE, request.seeds),
            Field.of("x", request.seeds),
            ("twice", 2 * request.seeds),
        ]


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Plugins:
    users: Any = ModuleType("users_samplers")
    users.Failing = _Failing
    monkeypatch.setitem(sys.modules, "users_samplers", users)
    return Plugins(SamplerKind("users_samplers.Failing", {"bad": 1}))


def test_a_users_sampler_is_built_of_its_path_and_keywords(setup, plugins: Plugins) -> None:
    peers: Any = object()
    found = plugins.sampler.build(setup.view, setup.plan, peers)
    assert isinstance(found, _Failing)
    assert (found.view, found.plan, found.peers) == (setup.view, setup.plan, peers)


@pytest.fixture
def with_plugins(setup: WorkerSetup, plugins: Plugins) -> Iterator[_Trainer]:
    found = _Trainer(dataclasses.replace(setup, plugins=pickled(plugins)))
    yield found
    found.close()


def test_what_a_sampler_raises_is_told_and_the_next_batch_sampled(with_plugins: _Trainer) -> None:
    trainer = with_plugins
    trainer.start()
    trainer.tell((pipe.ATTEMPT, 0, Attempt(6, 1), False))
    message, _ = trainer.ask(_ticket(0))
    assert message["twice"].tolist() == [60, 62, 64, 66]
    for batch, error in ((1, "ArithmeticError: not this one"), (2, "OSError: [Errno 28]")):
        kind, ticket, cause, text = trainer.ask(_ticket(batch))
        assert (kind, ticket) == (pipe.ERROR, _ticket(batch))
        assert cause.startswith(error)
        assert "in sample" in text
    message, _ = trainer.ask(_ticket(0))
    assert message["x"].tolist() == [30, 31, 32, 33]


def test_the_longest_error_fits_into_a_message(with_plugins: _Trainer) -> None:
    with_plugins.start()
    with_plugins.tell((pipe.ATTEMPT, 0, Attempt(6, 1), False))
    kind, ticket, cause, text = with_plugins.ask(_ticket(3))
    assert (kind, ticket) == (pipe.ERROR, _ticket(3))
    assert cause.startswith("ValueError: xxx")
    assert text.endswith("x\n")


def test_a_worker_ends_when_it_is_told_or_its_trainer_is_gone(trainer: _Trainer) -> None:
    trainer.worker.prepare()
    assert trainer.hear() == (pipe.READY, None)
    trainer.tell((pipe.ATTEMPT, 0, Attempt(6, 1), False))
    trainer.tell((pipe.TASK, _ticket(0), [], []))
    trainer.tell((pipe.STOP, 0.0))
    trainer.worker.run()
    trainer.tell(ALONE)  # the threads that would sample begin only now
    trainer.tell((pipe.STOP, 0.0))
    trainer.worker.run()
    assert trainer.answer() == (pipe.STALE, _ticket(0)), "what is queued is stale"
    trainer.sock.close()
    with pytest.raises(_Exited, match="0"):
        trainer.worker.run()


def test_where_a_worker_takes_anothers_position_it_has_that_ones_door(setup: WorkerSetup) -> None:
    setup = dataclasses.replace(setup, access=Access("127.0.0.1", Security.local(), "a job"))
    with contextlib.closing(sockets.listen("127.0.0.1", 0)) as listening:
        trainer = _Trainer(setup, listening.fileno())
        trainer.worker.prepare()
        kind, address = trainer.hear()
        assert kind == pipe.READY
        assert address == listening.getsockname()[:2]
        answering: Any = trainer.worker._answering
        answering.close()
        trainer.close()
    ours, theirs = pipe.pair()
    with ours, theirs:
        send_object(ours, *tensors.dumps(setup))
        ours.close()
        with pytest.raises(ConnectionError, match="gone"):
            Worker(theirs, 0)


@contextlib.contextmanager
def signals_as_before() -> Iterator[None]:
    """Let a worker of this process handle signals within the block alone."""
    before = [(one, signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for one, handler in before:
            signal.signal(one, handler)


def test_a_worker_that_cannot_start_says_why(setup: WorkerSetup) -> None:
    ours, theirs = pipe.pair()
    with ours, theirs, signals_as_before():
        ours.settimeout(60.0)
        send_object(ours, *tensors.dumps({"no": np.arange(3)}))
        pipe.send(ours, (pipe.PLACE, False))
        with pytest.raises(_Exited, match="1"):
            module.main(theirs, 0)
        handled = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
        found = pipe.receive(ours)
    assert found is not None
    kind, cause, text = found[0]
    assert kind == pipe.FAILED
    assert cause.startswith("AttributeError")
    assert "in prepare" in text
    assert handled == [signal.SIG_IGN, signal.SIG_DFL], "Ctrl-C is the trainer's"


def test_freed_memory_is_kept_where_malloc_can_be_told(libc_is) -> None:
    told: list[tuple[int, int]] = []
    libc_is(mallopt=lambda *given: told.append(given))
    keep_freed_memory()
    assert told == [(-3, 32 * 2**20), (-1, 2**30), (-8, 1)]
    libc_is()
    keep_freed_memory()
