"""Connections are lost, reset and silent between one client and one server; nothing else is."""

import os
import threading
import time

import pytest
import torch

from gigl_loader.batch.message import Attempt
from gigl_loader.errors import ServerDiedError, UsageError
from gigl_loader.graph_store.client.connection import raise_if_broken
from gigl_loader.graph_store.client.server_outages import ServerOutages
from gigl_loader.graph_store.server.attendance import KILLED_GRACE_S
from gigl_loader.graph_store.wire.requests import EpochRequest, FetchAnswer, FetchRequest
from gigl_loader.sampler.options import SAME_MEMORY_VARIABLE
from gigl_loader.testing import wait_until
from tests.graph_store.in_process import channel_of, create, joined, start, storage, take
from tests.runtime.transport.relay import Relay

pytestmark = pytest.mark.multiprocess

OUTAGE_S, PATIENCE_S = 2.0, 7.0
"""An outage is well below the patience: a busy machine is silent for a while, too."""
AT_ONCE_S = 60.0
"""What a busy machine may take for what is no wait; each wait that is not wanted takes longer."""


def _same(one, other):
    assert len(one) == len(other)
    for left, right in zip(one, other, strict=True):
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.fixture(params=["0", "1"], ids=["over TCP", "same host"])
def memory(request, monkeypatch):
    monkeypatch.setenv(SAME_MEMORY_VARIABLE, request.param)


@pytest.mark.usefixtures("memory")
def test_lost_connections_cost_no_batch():
    """After each third batch all connections are reset, some of them with answers under way."""
    with (
        storage() as (endpoint,),
        Relay(endpoint.address) as relay,
        joined(relay.address) as connection,
    ):
        with channel_of(connection) as channel:
            start(channel, 0)
            expected = take(channel)
            assert len(expected) == 30
            start(channel, 0)
            found = []
            for _ in range(10):
                found += take(channel, 3)
                relay.reset()
            assert channel.next() is None
            _same(found, expected)
        assert endpoint.status()["clients"] == [0], "the client was here all the time"
        assert endpoint.jobs_served == 0


def test_a_long_outage_ends_when_the_links_are_renewed():
    """The client gave the server up; it connects again, and can have new producers."""
    with (
        storage(patience_s=PATIENCE_S) as (endpoint,),
        Relay(endpoint.address) as relay,
        joined(relay.address, patience_s=PATIENCE_S) as cluster,
    ):
        create(cluster)
        former = cluster.connections[0]
        relay.cut.set()
        wait_until(lambda: cluster.lost, "the link is given up", 60)
        with pytest.raises(ServerDiedError, match="storage server 0"):
            cluster.await_servers(ServerOutages({}, 0.0))
        relay.cut.clear()
        cluster.await_servers(ServerOutages({}, 60.0))
        assert not cluster.lost
        assert cluster.connections[0] is not former
        assert endpoint.status()["clients"] == [0]
        with channel_of(cluster) as channel:
            start(channel, 0)
            assert len(take(channel)) == 30


def test_a_short_outage_costs_its_length_and_a_long_one_is_an_error():
    with (
        storage(patience_s=PATIENCE_S) as (endpoint,),
        Relay(endpoint.address) as relay,
        joined(relay.address, patience_s=PATIENCE_S) as connection,
        channel_of(connection) as channel,
    ):
        start(channel, 0)
        expected = take(channel)
        start(channel, 0)
        found = take(channel, 5)
        relay.cut.set()
        healed = threading.Timer(OUTAGE_S, relay.cut.clear)
        healed.start()
        began = time.monotonic()
        found += take(channel)
        assert time.monotonic() - began < OUTAGE_S + AT_ONCE_S
        _same(found, expected)
        relay.cut.set()  # while idle
        threading.Timer(OUTAGE_S, relay.cut.clear).start()
        assert connection.connections[0].call("ping").result(60) == os.getpid()
        start(channel, 1)
        assert len(take(channel)) == 30
        assert endpoint.status()["clients"] == [0]

        relay.cut.set()
        start_at = time.monotonic()
        with pytest.raises(ServerDiedError, match="nothing was heard from it"):
            start(channel, 2)
        assert time.monotonic() - start_at < PATIENCE_S + 1.0 + AT_ONCE_S
        with pytest.raises(ServerDiedError):
            raise_if_broken(connection.connections.values())
        assert connection.connections[0].error is not None, "whoever asks next does not wait again"
        with pytest.raises(ServerDiedError):
            connection.connections[0].call("ping").result(60)
        relay.cut.clear()  # the relay has taken all bytes, so that the server sees no silence
        wait_until(lambda: endpoint.status()["clients"] == [], "the server frees the client")
        wait_until(lambda: endpoint.server.status()["producers"] == {}, "and its producers")


def test_a_client_that_is_cut_off_without_a_goodbye_is_freed_at_once():
    with (
        storage(patience_s=100.0) as (endpoint,),
        Relay(endpoint.address) as relay,
        joined(relay.address) as connection,
    ):
        create(connection)
        assert len(endpoint.server.status()["producers"]) == 1
        began = time.monotonic()
        relay.close()  # as when its process was killed: nobody comes back
        wait_until(lambda: endpoint.server.status()["producers"] == {}, "it is freed")
        assert KILLED_GRACE_S <= time.monotonic() - began < 10.0 + AT_ONCE_S  # not 100 s


def test_what_is_asked_again_happens_once():
    with storage() as (endpoint,), joined(endpoint.address) as connection:
        server = endpoint.server
        first = create(connection, "request 1")
        assert create(connection, "request 1") == first
        assert server.status()["create_calls"] == 1
        assert create(connection, "request 2") != first
        (producer,) = first
        call = connection.connections[0].call
        epoch = {
            "producer_id": producer,
            "epoch": 0,
            "request": EpochRequest(attempt=Attempt(0, 1)),
        }
        call("start_new_epoch_sampling", **epoch).result(60)
        caller = connection.connections[0].dial()

        def fetch(before, serial=1):
            attempt = Attempt(0, serial)
            request = FetchRequest(producer_id=producer, attempt=attempt, fetches_before=before)
            return caller.ask("fetch", request, FetchAnswer).wait(60)

        seeds = [fetch(before).batch.ticket.batch for before in range(4)]
        assert seeds == [0, 1, 2, 3]
        call("start_new_epoch_sampling", **epoch).result(60)  # asked again: goes on where it was
        assert fetch(4).batch.ticket.batch == 4
        assert fetch(2).batch.ticket.batch == 2, "answers from 2 on were lost"
        assert [fetch(before).batch.ticket.batch for before in (3, 4, 5)] == [3, 4, 5]
        with pytest.raises(Exception, match="sent 9 fetches before, but 6 were answered"):
            fetch(9)
        assert fetch(0, serial=7) == FetchAnswer(None, False)

        release = {"producer_id": producer, "consumer": 0, "linger_s": 0.0}
        for _ in range(3):
            call("release_sampling_producer", **release).result(30)
        with pytest.raises(UsageError, match="was destroyed"):
            fetch(6)
        with pytest.raises(UsageError, match="never existed"):
            call("release_sampling_producer", **{**release, "producer_id": 99}).result(30)


def test_a_process_that_was_given_up_is_told_so():
    """Its connections are cut off for too long, and come back."""
    with storage() as (endpoint,), joined(endpoint.address) as connection:
        member = next(iter(endpoint._attendance.members.values()))
        endpoint._note_departure(member)
        with pytest.raises(Exception, match="was given up: its producers have ended"):
            connection.connections[0].call("ping").result(30)
