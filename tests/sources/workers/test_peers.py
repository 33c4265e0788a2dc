"""Questions between workers: who asks whom, what comes back, and when an answering one may end."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.errors import (
    ConfigError,
    JoinRefusedError,
    PeerError,
    PeerTimeoutError,
    ProtocolError,
    WorkerDiedError,
)
from gigl_loader.runtime.transport import SILENCE_S, Security, sockets
from gigl_loader.sampler.plan import Draw, DrawRequest, RowsRequest
from gigl_loader.sampler.rows import reader
from gigl_loader.sampler.rows.reader import LocalReader
from gigl_loader.sources.workers.peers import (
    Access,
    LostWorkerAnswers,
    PartitionServer,
    PeerClient,
    WorkerAddress,
    assignments,
)
from gigl_loader.sources.workers.pipe import WorkerSetup
from gigl_loader.testing import TinyGraph, as_worker_gets, wait_until
from tests.runtime.transport.relay import Relay

pytestmark = pytest.mark.waits

GRAPH = TinyGraph.random(60, 500)
VIEW = as_worker_gets(GRAPH.partitions(2)[1].view())
OWN = np.flatnonzero(VIEW.node_books[NODE].owner(np.arange(60)) == 1)
ACCESS = Access("127.0.0.1", Security.local(), "a job")


@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_both_ends_know_who_asks_whom(sizes: list[int]) -> None:
    workers = {
        partition: [WorkerAddress("", 0, f"{partition}/{number}") for number in range(size)]
        for partition, size in enumerate(sizes)
    }
    plans = {p: assignments(workers, p) for p in workers}
    asks = {
        (name, whom.name)
        for plan in plans.values()
        for name, one in plan.items()
        for whom in one.asked.values()
    }
    expected = {
        (asker, name)
        for plan in plans.values()
        for name, one in plan.items()
        for asker in one.askers
    }
    assert asks == expected
    for partition, plan in plans.items():
        assert [worker.name for worker in workers[partition]] == list(plan)
        for one in plan.values():
            assert one.asked.keys() == workers.keys() - {partition}
        for other in workers.keys() - {partition}:
            loads = [sum(a.startswith(f"{other}/") for a in one.askers) for one in plan.values()]
            assert max(loads) - min(loads) <= 1, "questions spread evenly"


def test_a_partition_without_workers() -> None:
    with pytest.raises(ConfigError, match=r"\[2\] have no sampling workers"):
        assignments({0: [WorkerAddress("", 0, "a")], 2: []}, 0)


def _asking(
    answering: PartitionServer,
    name: str = "rank 0 worker 0",
    access: Access = ACCESS,
    timeout_s: float = 60.0,
) -> PeerClient:
    host, port = answering.address
    whom = WorkerAddress(host, port, "rank 1 worker 0")
    return PeerClient({1: whom}, access, name, timeout_s, 2)


@pytest.fixture
def answering():
    with_it = PartitionServer(ACCESS, VIEW, "sampling worker 0")
    yield with_it
    with_it.close()


def test_answers_are_those_of_the_partition(answering: PartitionServer) -> None:
    """From several threads at once; rows land in the array that was given."""
    asking, failures = _asking(answering), []

    def ask(thread: int) -> None:
        try:
            for turn in range(20):
                nodes = np.random.default_rng(thread * 100 + turn).permutation(OWN)
                request = DrawRequest(Draw(EDGE, 3, 2**64 - 1 - turn, with_edge=True), nodes)
                out = np.empty((nodes.size, *VIEW.node_features[NODE].values.shape[1:]), np.float32)
                drawn = asking.draw(1, request)
                rows = asking.rows(1, RowsRequest("node_features", NODE, nodes), out)
                assert rows.wait().values is out
                one, other = drawn.wait(), LocalReader(VIEW).answer_draw(request)
                for name in ("counts", "neighbors", "edge_ids"):
                    assert np.array_equal(getattr(one, name), getattr(other, name))
                matrix = VIEW.node_features[NODE]
                assert np.array_equal(out, matrix.values[matrix.locate(nodes)])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    asking.close()


def test_questions_that_are_refused_over_there(answering: PartitionServer) -> None:
    asking, ids = _asking(answering), OWN[:2]
    with pytest.raises(ProtocolError, match="unknown type"):
        asking.draw(1, DrawRequest(Draw(("a", "b", "c"), 1, 1), ids)).wait()
    with pytest.raises(ProtocolError, match="where float64"):
        asking.rows(1, RowsRequest("node_features", NODE, ids), np.empty((2, 9))).wait()
    with pytest.raises(ConfigError, match="partition 7, only for"):
        asking.draw(7, DrawRequest(Draw(EDGE, 1, 1), ids))
    asking.close()


def test_other_jobs_are_not_answered(answering: PartitionServer) -> None:
    """A port may be used again, by a job with the same certificates or none at all."""
    request = DrawRequest(Draw(EDGE, 1, 1), OWN)
    with_token = Access("", Security.resolve("", "of that job", False), "a job")
    other = _asking(answering, access=with_token)
    with pytest.raises(JoinRefusedError, match="speak TLS"):
        other.draw(1, request).wait()
    same_user = _asking(answering, access=Access("", ACCESS.security, "another job"))
    with pytest.raises(PeerError, match="another process listens there"):
        same_user.draw(1, request).wait()
    other.close()
    same_user.close()


def test_a_worker_ends_when_all_that_ask_it_are_done(answering: PartitionServer) -> None:
    """Those that say goodbye at once; those that were cut off after the time to come back."""
    answering.return_s = 1000.0
    names = {"first", "second", "cut off"}
    asking = {name: _asking(answering, name) for name in names}
    assert answering.wait_for_askers(names, 0.0) == names, "none has come so far"
    for one in asking.values():
        one.connect()
    assert answering.wait_for_askers(names, 0.0) == names
    asking["first"].close()
    wait_until(lambda: "first" not in answering.wait_for_askers(names, 0.1), "it left")
    _cut_off(asking["cut off"])
    asking["second"].close()
    wait_until(lambda: answering.wait_for_askers(names, 0.1) == {"cut off"}, "it is waited for")
    answering.return_s = 0.0
    wait_until(lambda: not answering.wait_for_askers(names, 0.1), "it had its time")
    answering.return_s = 1000.0
    asking["cut off"].draw(1, DrawRequest(Draw(EDGE, 1, 1), OWN)).wait()
    assert answering.wait_for_askers(names, 0.0) == {"cut off"}, "it came back"
    asking["cut off"].close()
    wait_until(lambda: not answering.wait_for_askers(names, 0.1), "it left")


def test_who_fell_silent_is_waited_for_as_long_as_patience_lasts() -> None:
    """It may be stopped, or its link cut; one whose connection was closed lives, and is back."""
    answering = PartitionServer(
        ACCESS, VIEW, "sampling worker 0", patience_s=1000.0, return_s=0.0, silence_s=0.2
    )
    with Relay(answering.address, bytes_per_s=100_000) as relay:
        host, port = relay.address
        asking = PeerClient({1: WorkerAddress(host, port, "it")}, ACCESS, "far", 60.0, 1)
        asking.draw(1, DrawRequest(Draw(EDGE, 1, 5), OWN)).wait()
        many, before = np.random.default_rng(0).choice(OWN, 400_000), relay.passed
        thread = threading.Thread(target=asking.draw, args=(1, DrawRequest(Draw(EDGE, 1, 5), many)))
        thread.start()
        wait_until(lambda: relay.passed > before + 20_000, "a part of the question has come")
        relay.cut.set()
        for _ in range(4):  # the listener looks once a second
            assert answering.wait_for_askers({"far"}, 0.5) == {"far"}
        relay.cut.clear()
        asking.close()
        thread.join()
    answering.close()


def test_a_lost_answer_is_asked_for_again(answering: PartitionServer) -> None:
    """A connection that breaks costs nothing but time: answers depend on their request alone."""
    asking = _asking(answering)
    asking.connect()
    request = DrawRequest(Draw(EDGE, 2, 5), OWN)
    for _ in range(10):
        drawn = asking.draw(1, request)
        _cut_off(asking)
        assert np.array_equal(
            drawn.wait().neighbors, LocalReader(VIEW).answer_draw(request).neighbors
        )
    asking.close()


def test_a_link_that_is_cut(answering: PartitionServer) -> None:
    """An outage that ends one asker costs another, with more patience, its length alone."""
    request = DrawRequest(Draw(EDGE, 2, 5), OWN)
    with Relay(answering.address) as relay:
        host, port = relay.address
        whom = {1: WorkerAddress(host, port, "rank 1 worker 0")}
        hasty = PeerClient(whom, ACCESS, "hasty", 60.0, 1, patience_s=2.5)
        patient = PeerClient(whom, ACCESS, "patient", 60.0, 1, patience_s=60.0)
        for one in (hasty, patient):
            one.draw(1, request).wait()
        relay.cut.set()
        late = patient.draw(1, request)
        with pytest.raises(PeerTimeoutError, match=r"rank 1 worker 0 .*is cut off"):
            hasty.draw(1, request).wait()
        relay.cut.clear()
        expected = LocalReader(VIEW).answer_draw(request).neighbors
        assert np.array_equal(late.wait().neighbors, expected)
        assert np.array_equal(hasty.draw(1, request).wait().neighbors, expected), "and again"
        hasty.close()
        patient.close()


def test_who_asks_a_worker_that_is_lost_for_good_hears_why() -> None:
    """Its rank lives, and knows: a refused connection would be taken for the end of that rank."""
    listening = sockets.listen("127.0.0.1", 0)  # as the trainer keeps it for a successor
    host, port = listening.getsockname()[:2]
    whom = {1: WorkerAddress(host, port, "rank 1 worker 0")}
    asking = PeerClient(whom, ACCESS, "rank 0 worker 0", 60.0, 1)
    asked, heard = threading.Event(), []

    def ask() -> None:
        answer = asking.draw(1, DrawRequest(Draw(EDGE, 2, 5), OWN))
        asked.set()
        with pytest.raises(PeerError) as caught:
            answer.wait()
        heard.append(str(caught.value))

    thread = threading.Thread(target=ask)
    thread.start()
    assert asked.wait(60.0)
    why = WorkerDiedError(0, 77, -9, "max_restarts=3 are used up in this epoch")
    refusing = LostWorkerAnswers(ACCESS, "rank 1 worker 0", listening.detach(), why)
    thread.join()
    out = np.empty((OWN.size, 4), np.float32)
    with pytest.raises(PeerError, match="max_restarts=3 are used up"):
        asking.rows(1, RowsRequest("node_features", NODE, OWN), out).wait()
    assert "rank 1 worker 0 was lost, and none takes its place" in heard[0]
    assert "pid 77" in heard[0]
    asking.close()
    refusing.close()


def _cut_off(asking: Any) -> None:
    """Close its connections, as the kernel does for a killed process."""
    for caller in asking._callers.values():
        caller._connection.stream.shutdown()


def test_a_thread_has_one_reader_for_all_questions(answering: PartitionServer, monkeypatch) -> None:
    """Each has scratch memory of its own: of 20,000 rows the fresh pages cost as much as they."""
    made = []

    def make(view: Any) -> LocalReader:
        made.append(threading.get_ident())
        return LocalReader(view)

    monkeypatch.setattr(reader, "LocalReader", make)
    asking = _asking(answering)
    for seed in range(5):
        asking.draw(1, DrawRequest(Draw(EDGE, 2, seed), OWN)).wait()
    assert len(made) == 1
    asking.close()


def test_a_worker_that_may_be_replaced_is_waited_for() -> None:
    """As long as an answer may take; one that will not come back only as long as the transport."""
    for replaceable, rpc_timeout_s, expected in (
        (True, 96.0, 96.0),
        (True, 2.0, SILENCE_S),
        (False, 96.0, SILENCE_S),
    ):
        setup = SimpleNamespace(replaceable=replaceable, rpc_timeout_s=rpc_timeout_s)
        patience_s: Any = vars(WorkerSetup)["patience_s"]
        assert patience_s.fget(setup) == expected


def test_a_worker_that_is_gone_and_one_that_is_busy(
    answering: PartitionServer, monkeypatch
) -> None:
    asking, request = _asking(answering), DrawRequest(Draw(EDGE, 2, 5), OWN)
    asking.draw(1, request).wait()
    busy = threading.Event()
    draw = LocalReader.answer_draw
    monkeypatch.setattr(LocalReader, "answer_draw", lambda *a: (busy.wait(60), draw(*a))[1])
    late = asking.draw(1, request)
    late.timeout_s = 0.3
    with pytest.raises(PeerTimeoutError, match=r"rank 1 worker 0 \(partition 1\).*is stopped"):
        late.wait()
    busy.set()
    late.timeout_s = 60.0
    late.wait()
    start = time.monotonic()
    answering.close()
    with pytest.raises(PeerError, match=r"rank 1 worker 0 \(partition 1\).*see its log"):
        asking.draw(1, request).wait()
    assert time.monotonic() - start < 30
    asking.close()
