"""One producer and its consumers, around a producer that does what the test says."""

import errno
import queue
import threading
import time
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gigl_loader.batch.leases import ServerMemory
from gigl_loader.batch.message import AT_ONCE_EPOCH, AT_ONCE_STREAM, Attempt, Received
from gigl_loader.errors import PeerError, PeerTimeoutError, ProtocolError, SamplingError
from gigl_loader.graph_store.server.service import StorageService
from gigl_loader.graph_store.server.shared_producer import SharedProducer
from gigl_loader.graph_store.wire.requests import EpochRequest, FetchRequest, ProducerRequest
from gigl_loader.sampler.options import SourceOptions
from gigl_loader.sources.workers.schedule import BatchStream
from gigl_loader.testing import wait_until
from tests.graph_store.store_cluster import tiny_graph
from tests.support.glt import NodeSamplerInput

SEEDS = NodeSamplerInput(torch.arange(1))


class ScriptedProducer:
    """Has the interface that `SharedProducer` uses; ``events`` holds what a pump brings."""

    num_batches = 4
    pids = (1,)
    queue_depth = 0
    rows_apart = False
    source_options = SourceOptions(seed=0)

    def __init__(self):
        self.events: queue.Queue = queue.Queue()
        self.streams: dict[int, BatchStream[Any]] = {0: BatchStream(0, 4)}

    def stream(self, number):
        return self.streams[number]

    def start_epoch(self, attempt, batches, positions=None, *, stream=0):
        self.streams[stream].start(attempt, batches, positions)

    def cancel_epoch(self, stream=0):
        self.streams[stream].cancel()

    def put_back(self, stream, taken):
        self.streams[stream].put_back(taken)

    def start_at_once(self, index, seed=None):
        self.streams[AT_ONCE_STREAM] = BatchStream(AT_ONCE_STREAM, 1)
        self.streams[AT_ONCE_STREAM].start(AT_ONCE_EPOCH, [0])

    def take(self, stream):
        return self.streams[stream].take(), self.streams[stream].finished

    def pump(self, timeout_s):
        try:
            self.events.get(timeout=timeout_s)()
        except queue.Empty:
            return False
        return True

    def bring(self, stream=0):
        """Let the next batch of a consumer arrive."""
        ticket: Any = self.streams[stream].next_ticket()
        self.streams[stream].arrived(ticket, Received(ticket, {}, {}))

    def fail(self, stream=0):
        self.streams[stream].fail(SamplingError("worker 0", "no luck"))

    def replace_stalled(self, limit_s):
        return False

    def leave_turns(self):
        """Do nothing: it has no turns."""

    def describe_workers(self):
        return "worker 0 draws"

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
    request = ProducerRequest(source_options=SourceOptions(seed=0))
    one = SharedProducer("key", producer, ServerMemory(4), request, ["client"], 1 << 20)
    yield one
    one.close()


def _fetch(shared, serial, before=None, connection=0, **how):
    request = FetchRequest(producer_id=0, attempt=Attempt(0, serial), fetches_before=before)
    return shared.fetch(request, connection, **how)


def _start(shared, serial):
    return shared.start_epoch(0, EpochRequest(attempt=Attempt(0, serial)))


def test_a_failure_goes_to_the_fetches_that_wait_and_to_those_after(shared, producer, caplog):
    _start(shared, 1)
    waiting = _fetch(shared, 1, 0)
    producer.events.put(producer.fail)
    for future in (waiting, _fetch(shared, 1, 1), _fetch(shared, 1)):
        with pytest.raises(SamplingError, match="no luck"):
            future.result(60)
    assert "producer 'key': worker 0 failed" in caplog.text
    _start(shared, 2)
    producer.events.put(producer.bring)
    assert _fetch(shared, 2, 0).result(60)[0].ticket.batch == 0


def test_an_error_of_the_pump_that_nobody_expects_reaches_who_waits(shared, producer, caplog):
    """Once it died in silence: each epoch stood until its timeout, and health was "serving"."""

    def no_descriptor():
        raise OSError(errno.EMFILE, "Too many open files")

    _start(shared, 1)
    waiting = _fetch(shared, 1)
    producer.events.put(no_descriptor)
    with pytest.raises(PeerError, match=r"producer 'key'.*OSError.*Too many open files"):
        waiting.result(60)
    with pytest.raises(PeerError, match="Too many open files"):
        _start(shared, 2)
    assert "Too many open files" in shared.status()["failed"]
    assert "thread 'pump key' ended by OSError" in caplog.text


def test_a_connection_that_was_replaced_takes_no_batch(shared, producer):
    """Its fetches may be read after those of the next one: nobody reads their answers."""
    _start(shared, 1)
    first = _fetch(shared, 1, 0, connection=1)
    again = _fetch(shared, 1, 0, connection=2)
    assert first.result(0) == (None, False), "nobody waits there any more"
    late = _fetch(shared, 1, 0, connection=1)
    assert late.result(0) == (None, False)
    assert not again.done(), "the late one left it alone"
    producer.events.put(producer.bring)
    received, is_over = again.result(60)
    assert (received.ticket.batch, is_over) == (0, False)


def test_a_batch_that_cannot_be_packed_is_an_error_to_who_waits(shared, producer):
    def fail(received, is_over):
        raise OSError(errno.EMFILE, "Too many open files")

    _start(shared, 1)
    waiting = _fetch(shared, 1, 0, pack=fail)
    producer.events.put(producer.bring)
    with pytest.raises(OSError, match="Too many open files"):
        waiting.result(60)


def test_who_hangs_up_takes_no_batch_and_nothing_is_packed_for_it(shared, producer):
    packed: list[Any] = []
    _start(shared, 1)
    gone = _fetch(shared, 1, 0, pack=lambda *found: packed.append(found))
    gone.cancel()
    producer.events.put(producer.bring)
    served = threading.Event()
    producer.events.put(served.set)  # by the next round of the pumping thread
    assert served.wait(60)
    assert producer.stream(0).taken == 0
    again = _fetch(shared, 1, 0, connection=1)  # as a client asks that has connected anew
    assert again.result(60)[0].ticket.position == 0
    assert packed == []


def test_answers_that_were_lost_come_again_and_nothing_is_asked_far_ahead(shared, producer):
    _start(shared, 1)
    for _ in range(3):
        producer.bring()
    found = [_fetch(shared, 1, before).result(60)[0].ticket.batch for before in range(3)]
    producer.bring()  # behind those that are lost
    with pytest.raises(ProtocolError, match="sent 4 fetches before, but 3 were answered"):
        _fetch(shared, 1, 4)
    again = [_fetch(shared, 1, before, connection=1) for before in (1, 2, 3)]
    for _ in range(2):
        producer.events.put(producer.bring)
    found += [future.result(60)[0].ticket.batch for future in again]
    assert found == [0, 1, 2, 1, 2, 3]
    assert again[2].result(0)[1], "the last one says so"


def test_tickets_have_the_positions_of_the_loader_also_when_they_come_again(shared, producer):
    batches, positions = np.array([3, 1, 3]), np.array([10, 20, 40])
    epoch = EpochRequest(attempt=Attempt(0, 1), batches=batches, positions=positions)
    shared.start_epoch(0, epoch)
    for _ in range(2):
        producer.bring()
    found = [_fetch(shared, 1, before).result(60)[0].ticket for before in (0, 1)]
    again = _fetch(shared, 1, 1, connection=1)  # the answer to the second one was lost
    producer.events.put(producer.bring)
    found.append(again.result(60)[0].ticket)
    assert [(one.position, one.batch, one.turn) for one in found] == [
        (10, 3, 0),
        (20, 1, 1),
        (20, 1, 1),
    ]
    short = EpochRequest(attempt=Attempt(0, 2), batches=batches, positions=positions[:2])
    with pytest.raises(ProtocolError, match="sent 2 positions for 3 batches"):
        shared.start_epoch(0, short)
    assert producer.stream(0).attempt == Attempt(0, 1)


def test_an_epoch_that_is_asked_for_again_goes_on(shared, producer):
    _start(shared, 1)
    producer.bring()
    assert _fetch(shared, 1, 0).result(60)[0].ticket.batch == 0
    _start(shared, 1)
    assert producer.stream(0).taken == 1
    shared.cancel_epoch(EpochRequest(attempt=Attempt(0, 7)))
    assert not producer.stream(0).is_broken_off, "of another attempt: it came late"
    shared.cancel_epoch(EpochRequest(attempt=Attempt(0, 1)))
    assert _fetch(shared, 1, 1).result(0) == (None, False)


@pytest.mark.parametrize("rows_apart", [False, True])
def test_whether_rows_come_with_the_batches_is_told_to_who_asks_again(shared, producer, rows_apart):
    """The first answer may have been lost with the connection."""
    producer.rows_apart = rows_apart
    assert [_start(shared, serial) for serial in (1, 1, 2)] == [rows_apart] * 3


def test_a_client_that_counts_no_attempts_starts_an_epoch_with_each_request(shared, producer):
    for serial in (1, 2):
        shared.start_epoch(5, EpochRequest())
        assert producer.stream(0).attempt == Attempt(5, serial)


def test_a_failure_of_a_broken_off_epoch_does_not_reach_the_next(shared, producer):
    """The client starts its next epoch between the failure and the server's hearing of it."""
    _start(shared, 1)
    restarted = threading.Event()

    def fail_then_restart():
        producer.fail()
        thread = threading.Thread(target=_start, args=(shared, 2))
        thread.start()
        thread.join()
        restarted.set()

    producer.events.put(fail_then_restart)
    assert restarted.wait(60)
    future = _fetch(shared, 2)
    producer.events.put(producer.bring)
    assert future.result(60)[0].ticket.batch == 0


def test_a_batch_at_once_is_waited_for_beside_the_epochs(shared, producer):
    index = torch.arange(3)
    producer.events.put(lambda: None)
    wait_until(producer.events.empty, "the pump runs")
    producer.source_options = SourceOptions(seed=0, timeout_s=0.01)
    with pytest.raises(PeerTimeoutError, match=r"no batch of 3 seeds.*worker 0 draws"):
        shared.sample(index)
    producer.source_options = SourceOptions(seed=0, timeout_s=60.0)
    for come, error in ((producer.bring, None), (producer.fail, "no luck")):
        thread = threading.Timer(0.1, producer.events.put, (partial(come, AT_ONCE_STREAM),))
        thread.start()
        if error is None:
            assert shared.sample(index).ticket.epoch == AT_ONCE_EPOCH
        else:
            with pytest.raises(SamplingError, match=error):
                shared.sample(index)
        thread.join()


def test_who_shares_a_key_waits_until_the_producer_can_be_used(monkeypatch):
    """One asks first and creates; the other is told that it is up, and finds it."""

    class Slow(StorageService):
        def _start(self, *_):
            time.sleep(0.2)
            request = ProducerRequest(source_options=SourceOptions(seed=0))
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
            found.put(server.create_sampling_producer(SEEDS, Config, Options))
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


class _Instant(StorageService):
    """Its producers are there at once; each has two clients."""

    leaves_meanwhile = None

    def __init__(self, dataset):
        super().__init__(dataset)
        self.told_gone = []

    def client_gone(self, client):
        self.told_gone.append(client)
        super().client_gone(client)

    def _start(self, *_):
        if self.leaves_meanwhile is not None:
            self.client_gone(self.leaves_meanwhile)
        request = ProducerRequest(source_options=SourceOptions(seed=0))
        producer: Any = ScriptedProducer()
        clients = [(7, 0), (7, 1)]
        return SharedProducer("key", producer, ServerMemory(4), request, clients, 1 << 20)

    def create(self):
        how = SimpleNamespace(worker_key=None, seed=0)
        return self.create_sampling_producer(SEEDS, how, how)


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


def test_a_start_takes_no_longer_for_clients_of_other_jobs_that_left(instant):
    """A server may serve thousands of ranks, job after job."""
    instant.client_gone((7, 0))
    for number in range(1 << 16):
        instant.client_gone((number % 7, number))
    instant.client_gone((7, 1))
    instant.told_gone.clear()
    producer = instant.create()
    assert instant.told_gone == [(7, 1)], "those alone that the producer is for"
    consumers = instant.status()["producers"][producer]["consumers"]
    assert consumers == ["(7, 0)"], "the oldest was forgotten, the latest is remembered"
