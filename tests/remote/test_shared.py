"""One producer and its consumers, around a producer that does what the test says."""

import errno
import queue
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from store_cluster import tiny_graph

from gigl_loader.errors import PeerError, SamplingError
from gigl_loader.graph_store import DistServer
from gigl_loader.memory.leases import ServerMemory
from gigl_loader.message import BatchTicket, Received
from gigl_loader.options import EpochOptions
from gigl_loader.remote import service
from gigl_loader.remote.requests import EpochRequest, FetchRequest, ProducerRequest
from gigl_loader.remote.shared import SharedProducer
from gigl_loader.testing import wait_until


class ScriptedProducer:
    """Has the interface that `SharedProducer` uses; ``events`` holds what a pump brings."""

    num_batches = 4
    pids = (1,)
    queue_depth = 0
    rows_apart = False
    epoch_options = EpochOptions(seed=0)

    def __init__(self):
        self.events: queue.Queue = queue.Queue()
        self.left, self.arrived = 0, []

    def start_epoch(self, epoch, batches, stream=0):
        self.left, self.arrived = len(batches), []

    def cancel_epoch(self, stream=0):
        self.left = 0

    def take(self, stream):
        received = self.arrived.pop(0) if self.arrived else None
        self.left -= received is not None
        return received, self.left == 0

    def pump(self, timeout_s, failures):
        try:
            self.events.get(timeout=timeout_s)(failures)
        except queue.Empty:
            return False
        return True

    def fail(self, failures):
        self.left = 0  # as the stream of a failed batch
        failures.append((0, SamplingError("worker 0", "no luck")))

    def replace_stalled(self, limit_s):
        return False

    def limit_stream(self, number, limit):
        pass

    def remove_stream(self, number):
        pass

    def shutdown(self, *_):
        pass


@pytest.fixture
def producer():
    return ScriptedProducer()


@pytest.fixture
def shared(producer):
    request = ProducerRequest(epoch_options=EpochOptions(seed=0))
    one = SharedProducer("key", producer, ServerMemory(4), request, ["client"], 1 << 20)
    yield one
    one.close()


def _position(generation, position=None):
    return FetchRequest(producer_id=0, generation=generation, position=position)


def _received(batch):
    return Received(BatchTicket(0, 0, 0, batch), {}, {})


def test_a_failure_goes_to_the_fetches_that_wait_and_to_those_after(shared, producer):
    shared.start_epoch(0, EpochRequest(generation=1))
    waiting = shared.fetch(_position(1))
    producer.events.put(producer.fail)
    for future in (waiting, shared.fetch(_position(1))):
        with pytest.raises(SamplingError, match="no luck"):
            future.result(60)


def test_an_error_of_the_pump_that_nobody_expects_reaches_who_waits(shared, producer, caplog):
    """Once it died in silence: each epoch stood until its timeout, and health was "serving"."""

    def no_descriptor(failures):
        raise OSError(errno.EMFILE, "Too many open files")

    shared.start_epoch(0, EpochRequest(generation=1))
    waiting = shared.fetch(_position(1))
    producer.events.put(no_descriptor)
    with pytest.raises(PeerError, match=r"producer 'key'.*OSError.*Too many open files"):
        waiting.result(60)
    with pytest.raises(PeerError, match="Too many open files"):
        shared.start_epoch(1, EpochRequest(generation=2))
    assert "Too many open files" in shared.status()["failed"]
    assert "thread 'pump key' ended by OSError" in caplog.text


def test_a_connection_that_was_replaced_takes_no_batch(shared, producer):
    """Its fetches may be read after those of the next one: nobody reads their answers."""
    shared.start_epoch(0, EpochRequest(generation=1))
    first = shared.fetch(_position(1, 0), attempt=1)
    again = shared.fetch(_position(1, 0), attempt=2)
    assert first.result(0) == (None, False), "nobody waits there any more"
    late = shared.fetch(_position(1, 0), attempt=1)
    assert late.result(0) == (None, False)
    assert not again.done(), "the late one left it alone"
    producer.events.put(lambda failures: producer.arrived.append(_received(3)))
    received, is_over = again.result(60)
    assert (received.ticket.batch, is_over) == (3, False)


def test_a_failure_of_a_broken_off_epoch_does_not_reach_the_next(shared, producer):
    """The client starts its next epoch between the failure and the server's hearing of it."""
    shared.start_epoch(0, EpochRequest(generation=1))
    restarted = threading.Event()

    def fail_then_restart(failures):
        producer.fail(failures)
        thread = threading.Thread(target=shared.start_epoch, args=(1, EpochRequest(generation=2)))
        thread.start()
        thread.join()
        restarted.set()

    producer.events.put(fail_then_restart)
    assert restarted.wait(60)
    wait_until(lambda: shared._consumers[0].error is not None, "the failure was heard of")
    future = shared.fetch(_position(2))
    producer.events.put(lambda _: producer.arrived.append(_received(0)))
    assert future.result(60)[0].ticket.batch == 0


def test_who_shares_a_key_waits_until_the_producer_can_be_used(monkeypatch):
    """One asks first and creates; the other is told that it is up, and finds it."""

    class Slow(DistServer):
        def _start(self, *_):
            time.sleep(0.2)
            request = ProducerRequest(epoch_options=EpochOptions(seed=0))
            producer: Any = ScriptedProducer()
            return SharedProducer("key", producer, ServerMemory(4), request, ["client"], 1 << 20)

        def _adopt(self, slot, shared, client):
            time.sleep(0.2)  # the other would look at the slot meanwhile
            super()._adopt(slot, shared, client)

    class Options:
        worker_key = "key"

    server = Slow(tiny_graph().dataset())
    found: queue.Queue = queue.Queue()

    def ask():
        try:
            found.put(server.create_sampling_producer(None, Config, Options))
        except Exception as error:
            found.put(error)

    class Config:
        seed = 0

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.get() == found.get() != 0
    server.close()


class _Instant(DistServer):
    """Its producers are there at once; each has two clients."""

    leaves_meanwhile = None

    def _start(self, *_):
        if self.leaves_meanwhile is not None:
            self.client_gone(self.leaves_meanwhile)
        request = ProducerRequest(epoch_options=EpochOptions(seed=0))
        producer: Any = ScriptedProducer()
        clients = [(7, 0), (7, 1)]
        return SharedProducer("key", producer, ServerMemory(4), request, clients, 1 << 20)

    def create(self):
        how = SimpleNamespace(worker_key=None, seed=0)
        return self.create_sampling_producer(None, how, how)


@pytest.fixture
def instant():
    server = _Instant(tiny_graph().dataset())
    yield server
    server.close()


def test_a_client_that_leaves_while_its_producer_starts_has_released_it(instant):
    instant.leaves_meanwhile = (7, 1)
    producer = instant.create()
    assert instant.status()["producers"][producer]["consumers"] == ["(7, 0)"]
    instant.client_gone((7, 0))
    assert instant.status()["producers"] == {}
    instant.leaves_meanwhile = None
    assert instant.status()["starting_producers"] == []
    assert instant.create() not in instant.status()["producers"], "both left before"
    instant.client_back((7, 0))
    assert instant.create() in instant.status()["producers"]


def test_a_start_takes_no_longer_for_clients_of_other_jobs_that_left(instant, monkeypatch):
    """A server may serve thousands of ranks, job after job."""
    monkeypatch.setattr(service, "_MOST_GONE", 50)
    for number in range(100):
        instant.client_gone((number % 7, number))
    assert len(instant._gone) == 50, "the latest ones"
    assert (99 % 7, 99) in instant._gone
    asked: list[Any] = []
    monkeypatch.setattr(instant, "client_gone", asked.append)
    instant.create()
    assert asked == []
