"""A process that is let in and does what it must not, beside a job of chaos.

``_chaos_stranger.py ADDRESS SERVERS FOLDER``: it attacks storage server 0, round after round, until
the folder has the file ``stop``; then it leaves. ``attacks.json`` counts each attack, apart from it
those that found the server silent, and lists those that had another end than they must.
"""

import contextlib
import json
import os
import random
import secrets
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from gigl_loader.errors import (
    ConfigError,
    GiglLoaderError,
    JoinRefusedError,
    PeerLostError,
    ProtocolError,
    ServerDiedError,
)
from gigl_loader.graph_store.client.connection import ServerConnection
from gigl_loader.graph_store.server.rendezvous_host import Publish
from gigl_loader.graph_store.wire.membership import Join, News, Role, WaitReport, Watch
from gigl_loader.graph_store.wire.requests import EpochRequest, Nothing, ProducerRequest, Runs
from gigl_loader.loader.base import BaseDistLoader
from gigl_loader.runtime.glt_classes import NodeSamplerInput, RemoteDistSamplingWorkerOptions
from gigl_loader.runtime.transport import Caller, Security
from gigl_loader.runtime.transport.stream import KNOCK_FRAME
from gigl_loader.sampler.options import SourceOptions

_LIMIT_S = 60.0
_TYPE = "default_homogeneous_node_type"


class Stranger:
    """Attacks, each of which ends as it must or raises an AssertionError."""

    def __init__(self, address: tuple[str, int], servers: int) -> None:
        self._address, self._servers, self._lot = address, servers, random.Random(0)
        self._security = Security.resolve()

    def _member(self, **claims: Any) -> Join:
        said = {"role": Role.CLIENT, "rank": 0, "world_size": 1, "job_name": "stranger", **claims}
        return Join(num_servers=self._servers, process=f"stranger {os.getpid()}", **said)

    def _caller(self) -> Caller:
        return Caller(*self._address, self._security, "stranger")

    @contextlib.contextmanager
    def _let_in(self, join: Join) -> Iterator[ServerConnection]:
        session = secrets.token_hex(16)
        made = ServerConnection(0, self._address, self._security, "stranger", session, 10.0, join)
        try:
            made.meet(_LIMIT_S)
            deadline = time.monotonic() + _LIMIT_S
            waits = WaitReport("stranger", deadline)
            made.wait_until_in(lambda news: news.job is not None, deadline, _LIMIT_S, waits)
            yield made
        finally:
            made.close()

    def openings(self) -> None:
        """Random, cut and changed first bytes, on 200 connections."""
        for _ in range(200):
            start = self._lot.choice([b"", KNOCK_FRAME[:3], KNOCK_FRAME, b"\x16\x03\x01\x02\x00"])
            with socket.create_connection(self._address, 5) as sock, contextlib.suppress(OSError):
                sock.sendall(start + self._lot.randbytes(self._lot.randrange(400)))

    def half_open(self) -> None:
        """300 connections that say nothing, at a time."""
        with contextlib.ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(socket.create_connection(self._address, 5))

    def wrong_token(self) -> None:
        """Another token than the cluster's."""
        security = Security.resolve("", "a guess of the token of the cluster", False)
        with _ends_by(JoinRefusedError), Caller(*self._address, security, "stranger") as caller:
            caller.ask("watch", Watch(self._member(), 0), News).wait(_LIMIT_S)

    def counts(self) -> None:
        """Numbers of jobs that cannot be, and a rank that the job does not have."""
        for claim in ({"job": 2**64 - 1}, {"job": 77, "jobs_served": 2**64 - 1}):
            watch = Watch(self._member(**claim), 0)
            with self._caller() as caller, _ends_by(ProtocolError):
                caller.ask("watch", watch, News).wait(_LIMIT_S)
        join = self._member(rank=50, world_size=100, job=0, job_name="")
        with _ends_by(GiglLoaderError), self._let_in(join):
            pass

    def values(self) -> None:
        """Values at a rendezvous, which are of servers alone."""
        value = Publish("a name", 1, "key", bytes(900_000), Runs.of([0, 1]))
        with self._caller() as caller, _ends_by(ProtocolError):
            caller.ask("publish", value, Nothing).wait(_LIMIT_S)

    def requests(self) -> None:
        """Too many ports, producers of others, seeds that are no nodes."""
        with self._let_in(self._member()) as connection:
            with _ends_by(ConfigError):
                connection.call("get_free_ports", num_ports=65_536).result(_LIMIT_S)
            for number in range(8):
                with _ends_by(GiglLoaderError):
                    self._end(connection, number)
            with _ends_by(ConfigError):
                self._producer(connection, batch_size=1, seeds=torch.tensor([-1]))

    def unbounded_batch(self) -> None:
        """A million neighbours of each of a thousand seeds."""
        seeds = torch.zeros(1000, dtype=torch.int64)
        with self._let_in(self._member()) as connection:
            number = self._producer(connection, batch_size=1000, seeds=seeds)
            start = connection.call(
                "start_new_epoch_sampling", producer_id=number, epoch=0, request=EpochRequest()
            )
            start.result(_LIMIT_S)
            fetched = connection.call("fetch_one_sampled_message", producer_id=number, consumer=0)
            with _ends_by(GiglLoaderError, "neighbours of 1,000 nodes"):
                fetched.result(_LIMIT_S)
            self._end(connection, number)

    def _end(self, connection: ServerConnection, number: int) -> None:
        call = connection.call("destroy_sampling_producer", producer_id=number, linger_s=0.0)
        call.result(_LIMIT_S)

    def _producer(self, connection: ServerConnection, *, batch_size: int, seeds: Any) -> int:
        schema = connection.call("get_schema").result(_LIMIT_S)
        fanout = [10**6]
        config = BaseDistLoader.create_sampling_config(fanout, schema, batch_size, seed=1)
        number: int = connection.call(
            "create_sampling_producer",
            sampler_input=NodeSamplerInput(seeds, _TYPE),
            sampling_config=config,
            worker_options=RemoteDistSamplingWorkerOptions(
                server_rank=[0],
                num_workers=1,
                worker_concurrency=4,
                master_addr=self._address[0],
                master_port=1,
                worker_key=secrets.token_hex(8),
            ),
            sampler_options=None,
            request=ProducerRequest(source_options=SourceOptions(seed=1, replace=True)),
        ).result(_LIMIT_S)
        return number


ATTACKS: dict[str, Callable[[Stranger], None]] = {
    name: getattr(Stranger, name)
    for name in (
        "openings",
        "half_open",
        "wrong_token",
        "counts",
        "values",
        "requests",
        "unbounded_batch",
    )
}


@contextlib.contextmanager
def _ends_by(kind: type[GiglLoaderError], words: str = "") -> Iterator[None]:
    try:
        yield
    except kind as error:
        if words in str(error):
            return
        raise
    raise AssertionError("it was not refused")


def is_silence(error: Exception) -> bool:
    """Whether an attack had no end, as nothing was heard of the server for `network_timeout`.

    On a machine whose cores all have more to do than they can, either side may be late by that
    much. It says so by name, to the attacker alone: what a job loses by it is counted of the job.
    """
    return isinstance(error, PeerLostError | ServerDiedError) and "nothing was heard" in str(error)


def main() -> None:
    address, servers, place = sys.argv[1:]
    host, _, port = address.rpartition(":")
    stranger, folder = Stranger((host, int(port)), int(servers)), Path(place)
    done, silent, wrong = Counter[str](), Counter[str](), list[str]()
    is_over = False
    while not is_over:
        is_over = (folder / "stop").exists()  # at least one round
        for name, attack in ATTACKS.items():
            try:
                attack(stranger)
                done[name] += 1
            except Exception as error:
                if is_silence(error):
                    silent[name] += 1
                else:
                    wrong.append(f"{name}: {type(error).__name__}: {error}")
            draft = folder / "attacks.tmp"
            draft.write_text(json.dumps({"done": done, "silent": silent, "wrong": wrong[:20]}))
            draft.replace(folder / "attacks.json")


if __name__ == "__main__":
    main()
