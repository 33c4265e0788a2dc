"""Program of a Ray actor: a storage server in a child process, watched and restarted.

The child, ``python -m gigl_loader.graph_store.ray.actor PID ARGUMENT...`` with the parent's pid, is
``gigl-loader serve`` that never outlives its parent.

Ray notices an actor that dies and a node that is lost. It does not notice an actor that is stopped,
and it waits silently for a node to have room again. So the driver's `Watchdog` requests the health
of servers, kills those that do not respond, and gives up after a limit.

Neither torch nor Ray is imported with this module: the actor responds within milliseconds of its
start, however long its server takes to load a graph.
"""

import contextlib
import ctypes
import logging
import os
import platform
import random
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

from gigl_loader.errors import (
    GiglLoaderError,
    PeerError,
    PeerTimeoutError,
    ResourceError,
    ServerDiedError,
    signal_name,
)
from gigl_loader.graph_store import status
from gigl_loader.runtime.threads import new_thread, start_aside
from gigl_loader.runtime.transport import Security, address_towards
from gigl_loader.runtime.transport.security import (
    INSECURE_VARIABLE,
    TLS_DIR_VARIABLE,
    TOKEN_VARIABLE,
)
from gigl_loader.runtime.transport.sockets import is_free

_log = logging.getLogger(__name__)
_PORTS = (20000, 32000)
"""Above the ports of Ray's own workers, below those that the kernel gives to outgoing connections:
a restarted server needs its port to be free again."""
# seconds between two health requests, so also how soon a server is known to serve or to have ended
_ASK_EVERY_S = 1.0
# Seconds for one request. A server that samples on all its cores is slow to respond; it is stopped
# only after a silence of `health_timeout_s`.
_ASK_TIMEOUT_S = 5.0
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each restart of a server; the last one repeats. A port may still be taken."""
# seconds for goodbyes and the end of the workers; then the server is killed
_STOP_S = 20.0
# lines of its log kept for `last_log`: room for a traceback
_LINES = 30
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """How one server is run, the same at each restart."""

    rank: int
    num_servers: int
    root: str
    master: tuple[str, int]
    """Host and port of storage server 0."""
    port: int
    """Port that this server listens on."""
    # kept out of the repr, which Ray writes into logs and errors, as it has the token
    environment: Mapping[str, str] = field(repr=False)
    """Environment with the credentials of the cluster."""
    arguments: tuple[str, ...] = ()
    """Further arguments for ``gigl-loader serve``."""
    # spawned, not forked: an actor has threads and Ray's connections
    command: tuple[str, ...] = (sys.executable, "-m", "gigl_loader.graph_store.ray.actor")
    """The child's program; its further arguments are the parent's pid and those of ``serve``."""
    max_restarts: int = -1
    health_timeout_s: float = 30.0
    load_timeout_s: float = 1800.0


def free_address(rank: int, num_servers: int, host: str) -> tuple[str, int]:
    """Return ``host`` and a port that is free there; servers of one node never get the same one.

    Raises:
        ResourceError: No port is free.
    """
    first, last = _PORTS
    # Tasks of one node search at the same time, and a port that was found is not held: remainders
    # keep the servers of one cluster apart.
    ports = [port for port in range(first, last) if port % num_servers == rank]
    # random, so that two clusters on one node rarely try the same ports
    for port in random.sample(ports, len(ports)):
        if is_free(host, port):
            return host, port
    raise ResourceError(
        f"no port of {host} in [{first}, {last}) is free for server {rank} of {num_servers}: is it "
        "an address of this node? End what listens there, or start fewer servers"
    )


class StorageServer:
    """One storage server: a child process, and the thread that watches it.

    ::

        loading --it answers--> serving --it ended, or does not answer--> restarting --> loading
           restarting --no restarts left--> failed          any --stop()--> stopped

    Args:
        options: How to run the server.
    """

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        # "" instead of None for a missing value: None would read this actor's environment
        environment = options.environment
        self._security = Security.resolve(
            environment.get(TLS_DIR_VARIABLE, ""),
            environment.get(TOKEN_VARIABLE, ""),
            bool(environment.get(INSECURE_VARIABLE)),
        )
        # No lock: the thread below writes, and the actor's methods read, single values.
        self._stopping = threading.Event()
        self._child: subprocess.Popen[str] | None = None
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._state, self._served, self._restarts = "loading", False, 0
        self._generation = 0
        self._why, self._last_log = "", list[str]()
        self._status: dict[str, Any] = {}
        # the kernel ends a child with the thread that started it, so this thread must stay
        self._thread = new_thread(target=self._run, name="watch", on_death=self._cannot_watch)
        self._thread.start()

    def health(self) -> dict[str, Any]:
        """Return the server's state as plain values, without waiting.

        ``state`` is one of the picture above, ``served`` whether it ever was ready, ``generation``
        the microsecond in which the current process was started, ``why`` and ``last_log`` how the
        previous one ended, ``status`` the server's own status.
        """
        child = self._child
        return {
            "state": self._state,
            "served": self._served,
            "restarts": self._restarts,
            "generation": self._generation,
            "pid": None if child is None else child.pid,
            "node": platform.node(),
            "watcher_pid": os.getpid(),
            "why": self._why,
            "last_log": self._last_log,
            "status": self._status,
        }

    def stop(self) -> None:
        """End the server in good order; return when it is gone. Idempotent."""
        # first, as the thread must not start another child once this one has ended
        self._stopping.set()
        child = self._child
        if child is not None:
            child.terminate()
            try:
                child.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
        self._thread.join(_STOP_S)

    # -- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            reader = self._start()
            why = self._watch()
            reader.join(_ASK_TIMEOUT_S)  # for the last line; its workers may hold the pipe longer
            self._last_log, self._why, self._status = list(self._lines), why, {}
            if self._stopping.is_set() or self._is_used_up():
                break
            self._state = "restarting"
            # not `sleep`, so that `stop` ends the pause
            self._stopping.wait(_PAUSES_S[min(self._restarts, len(_PAUSES_S) - 1)])
            self._restarts += 1
        self._state = "stopped" if self._stopping.is_set() else "failed"

    def _cannot_watch(self, error: BaseException) -> None:
        """End the server if its watching thread fails; the watchdog sees the state."""
        self._why, self._state = f"its watch ended by {type(error).__name__}: {error}", "failed"
        if self._child is not None:
            self._child.kill()

    def _is_used_up(self) -> bool:
        return 0 <= self._options.max_restarts <= self._restarts

    def _start(self) -> threading.Thread:
        """Start a child; return the thread that reads its log."""
        options = self._options
        host, port = options.master
        argv = [
            f"--root={options.root}",
            f"--rank={options.rank}",
            f"--master-port={port}",
            f"--num-servers={options.num_servers}",
            f"--master-addr={host}",
            f"--host={self._own_address}",
            f"--port={options.port}",
            "--num-jobs=0",
            *options.arguments,
        ]
        # The actor's inherited settings are removed if others are given: certificates and
        # `insecure` together are refused.
        unset = (TLS_DIR_VARIABLE, TOKEN_VARIABLE, INSECURE_VARIABLE)
        inherited = {name: value for name, value in os.environ.items() if name not in unset}
        self._lines.clear()
        self._state = "loading"
        # larger than at any earlier start on any node; below 2**53, so exact as a JSON number
        self._generation = time.time_ns() // 1000
        self._child = subprocess.Popen(
            [*self._options.command, str(os.getpid()), *argv],
            env={**inherited, **options.environment},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        # always read, as a server whose pipe is full would stop in the middle of a log line
        reader = start_aside("log of the server", self._read, self._child)
        if self._stopping.is_set():  # `stop` may not have seen this child
            self._child.terminate()
        return reader

    @property
    def _own_address(self) -> str:
        """Server 0's address is known to all; the others use the one that they reach it from."""
        host = self._options.master[0]
        return host if self._options.rank == 0 else address_towards(host)

    def _read(self, child: "subprocess.Popen[str]") -> None:
        assert child.stderr is not None
        with child.stderr:
            for line in child.stderr:
                self._lines.append(line.rstrip())
                # goes into Ray's log; if that fails, the pipe is still read, or the server would
                # stop in the middle of a line
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.write(line)

    def _watch(self) -> str:
        """Wait for the child's end, or kill it if it does not respond; return the reason."""
        assert self._child is not None
        where = (self._own_address, self._options.port)
        started = heard = time.monotonic()
        served = False
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return _how(self._child.wait(_ASK_EVERY_S))
            options = self._options
            patience_s = min(_ASK_TIMEOUT_S, options.health_timeout_s)
            with contextlib.suppress(GiglLoaderError):
                # on a new connection each time, like a client that joins
                self._status = status.ask(where, self._security, patience_s)
                heard, served, self._served = time.monotonic(), True, True
                if not self._stopping.is_set():
                    self._state = "serving"
            # a loading server cannot respond, and has as long as loading may take
            quiet = time.monotonic() - (heard if served else started)
            if quiet > (options.health_timeout_s if served else options.load_timeout_s):
                self._child.kill()
                # waited for, as its port is not free for the next one until then
                self._child.wait()
                return f"it did not answer for {quiet:.0f} s and was killed"


def _how(code: int) -> str:
    if code < 0:
        return f"it was ended by {signal_name(-code)}"
    return f"it ended with exit code {code}"


# --- the child ------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """Serve by ``argv[1:]`` for the parent ``argv[0]``; return the exit code.

    SIGKILL, not SIGTERM: a server that is told to end says goodbye for good, and this one is about
    to be started again.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(argv[0]):  # the parent went before the line above
        return 1
    # which takes seconds to import
    return cast("int", import_module("gigl_loader.graph_store.serve").serve_main(argv[1:]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


# --- the watchdog ---------------------------------------------------------------------------------


class Actor:
    """One server's actor, as the watchdog reaches it.

    Args:
        actor: Ray's handle of a `StorageServer`.
        group: Ray's placement group of all actors.
    """

    def __init__(self, actor: Any, group: Any) -> None:
        self.actor, self._group = actor, group
        self._asked: Any = None

    def ask(self) -> None:
        """Request its health, which `answer` returns later."""
        self._asked = self.actor.health.remote()

    def answer(self) -> dict[str, Any] | None:
        """Return its response to the last request; None: not yet there.

        Raises:
            Exception: It will never respond again.
        """
        import ray

        # not `get`: one thread watches all servers, and a silent one must not block it
        done, _ = ray.wait([self._asked], timeout=0)
        if not done:
            return None
        return cast("dict[str, Any]", ray.get(self._asked))

    def kill(self) -> None:
        """Kill its process, so that it is restarted."""
        import ray

        # Ray restarts it, with the same arguments, as often as `max_restarts` allows
        ray.kill(self.actor, no_restart=False)

    def is_placed(self) -> bool:
        """Whether a node has room for it; if not, there is nothing to kill."""
        from ray.util import placement_group_table

        # the state is RESCHEDULING while a lost node's servers wait for another node
        return bool(placement_group_table(self._group)["state"] == "CREATED")


@dataclass
class _Server:
    way: Actor
    heard: float
    # one request at a time: Ray keeps requests to a stopped actor, which would serve them all later
    asked: float | None = None
    killed: bool = False
    lost: bool = False
    """Whether it was given up; it may come back."""
    health: dict[str, Any] = field(default_factory=lambda: {"state": "starting"})


class Watchdog:
    """Watches servers in a thread that repeats `step`.

    Args:
        servers: Servers by rank.
        interval_s: Seconds between two requests to a server.
        timeout_s: Seconds without a response after which a server's process is killed, once.
        lost_after_s: Seconds without a response after which a server is given up.
        num_partitions: Server ``i`` serves partition ``i`` modulo this number; the cluster works
            while one server of each is up. None: each partition has one server.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        servers: Sequence[Actor],
        *,
        interval_s: float,
        timeout_s: float,
        lost_after_s: float,
        num_partitions: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_s, self._timeout_s, self._lost_after_s = interval_s, timeout_s, lost_after_s
        self._clock = clock
        self._servers = [_Server(actor, clock()) for actor in servers]
        self._num_partitions = num_partitions or len(servers)
        self._over = threading.Event()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.error: ServerDiedError | None = None
        """Why the cluster cannot continue; None: it can."""

    def start(self) -> None:
        """Begin to watch."""
        self._thread = start_aside("ray watchdog", self._run)

    def close(self) -> None:
        """Stop watching. Idempotent."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def health(self) -> list[dict[str, Any]]:
        """Return the last status of each server, with its age ``silent_s``."""
        now = self._clock()
        return [{**server.health, "silent_s": now - server.heard} for server in self._servers]

    def wait_for(self, done: Callable[[list[dict[str, Any]]], bool], timeout_s: float) -> bool:
        """Wait until ``done(health)`` is true or the cluster failed; return False if too late."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self.error is not None or done(self.health()), timeout_s
            )

    def wait_until_all_serve(self, deadline: float, timeout_s: float) -> None:
        """Return when all servers serve.

        Args:
            deadline: When to give up (`time.monotonic`).
            timeout_s: The limit that the error names.

        Raises:
            PeerError: A server ended before it served, and would end again.
            PeerTimeoutError: Not all served by the deadline.
        """

        def broken(servers: list[dict[str, Any]]) -> list[int]:
            return [
                i
                for i, server in enumerate(servers)
                if server.get("why") and not server.get("served")
            ]

        def decided(servers: list[dict[str, Any]]) -> bool:
            return bool(broken(servers)) or all(server["state"] == "serving" for server in servers)

        in_time = self.wait_for(decided, max(0.0, deadline - time.monotonic()))
        servers = self.health()
        # before the watchdog's error, which has no log lines
        if failed := broken(servers):
            server = servers[failed[0]]
            log = "\n".join(server.get("last_log", []))
            raise PeerError(f"storage server {failed[0]} did not start: {server['why']}\n{log}")
        if self.error is not None:
            raise self.error
        if not in_time:
            states = {rank: server["state"] for rank, server in enumerate(servers)}
            raise PeerTimeoutError(
                f"not all storage servers serve after {timeout_s:.0f} s: {states}; see the logs of "
                "their actors, or raise start_timeout"
            )

    def _run(self) -> None:
        # Much more often than it sends requests: only a look finds a response.
        while not self._over.wait(min(0.1, self._interval_s)):
            try:
                self.step()
            except Exception:  # it must continue, as nothing else watches
                _log.exception("cannot look after the storage servers")
            with self._changed:
                # after each look, as `wait_for` judges by the last status of all servers
                self._changed.notify_all()

    def step(self) -> None:
        """Look at each server once, without waiting."""
        for rank, server in enumerate(self._servers):
            self._look(rank, server)

    def _look(self, rank: int, server: _Server) -> None:
        now = self._clock()
        if server.asked is None:
            # without a pause until the first response, to know of its start as soon as possible
            if now - server.heard >= self._interval_s or "pid" not in server.health:
                server.asked = now
                server.way.ask()
            return
        try:
            answer = server.way.answer()
        except Exception as error:
            self._lose(rank, f"Ray gave it up: {error}")
            return
        if answer is not None:
            self._heard(rank, server, answer)
            return
        silent = now - server.asked
        if silent > self._lost_after_s:
            reason = "" if server.way.is_placed() else ": no node has room for it"
            self._lose(rank, f"it has not answered for {silent:.0f} s{reason}")
        elif silent > self._timeout_s and not server.killed and server.way.is_placed():
            _log.warning("storage server %d did not answer for %.0f s: killing it", rank, silent)
            # once, until a response comes: a second kill would end the start that the first caused
            server.killed = True
            server.way.kill()

    def _heard(self, rank: int, server: _Server, answer: dict[str, Any]) -> None:
        before, server.health = server.health, answer
        server.heard, server.asked, server.killed = self._clock(), None, False
        # A response: the server is back. One without restarts left still responds, and stays lost,
        # so that it is reported once
        server.lost = answer["state"] == "failed" and server.lost
        if answer["state"] == "failed":
            log = "\n".join(answer.get("last_log", []))
            self._lose(rank, f"{answer.get('why')}, and no restarts are left\n{log}")
        elif answer.get("generation") != before.get("generation") and "pid" in before:
            _log.warning(
                "storage server %d was started again on %s: %s",
                *(rank, answer.get("node"), answer.get("why") or "its actor was lost"),
            )

    def _lose(self, rank: int, why: str) -> None:
        server, words = self._servers[rank], f"storage server {rank} on Ray is lost: {why}"
        if not server.lost:
            server.lost = True
            _log.error("%s", words)
        partition = rank % self._num_partitions
        # servers whose rank is the partition's number modulo the number of partitions
        replicas = self._servers[partition :: self._num_partitions]
        if self.error is None and all(replica.lost for replica in replicas):
            # kept even if a server comes back later, as loaders may have ended because of it
            self.error = ServerDiedError(words)
