"""Asks servers how they are, kills what does not answer, and gives up after a limit.

Ray notices an actor that dies and a node that is lost. It does not notice an actor that is stopped,
and it waits without a word for a node that has room again: both are told here.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gigl_loader.errors import PeerError, PeerTimeoutError, ServerDiedError
from gigl_loader.threads import new_thread, nothing_hangs_on_it

_log = logging.getLogger(__name__)


class Watched(Protocol):
    """One server, as the watchdog reaches it."""

    def ask(self) -> None:
        """Ask how it is; `answer` will tell."""

    def answer(self) -> dict[str, Any] | None:
        """Return what it said to the last question; None: nothing yet.

        Raises:
            Exception: It will never answer again.
        """

    def kill(self) -> None:
        """End its process, to be started again."""

    def is_placed(self) -> bool:
        """Whether a node has room for it; where none has, there is nothing to kill."""


@dataclass
class _Server:
    way: Watched
    heard: float
    # one question at a time: Ray keeps those to an actor that is stopped, and would answer them all
    asked: float | None = None
    killed: bool = False
    lost: bool = False
    """Given up; it may come back."""
    health: dict[str, Any] = field(default_factory=lambda: {"state": "starting"})


class Watchdog:
    """Watches servers in a thread; `step` is what it does again and again.

    Args:
        servers: By rank.
        interval_s: Between two questions to a server.
        timeout_s: After that long without an answer a server's process is killed, once.
        lost_after_s: After that long it is given up.
        num_partitions: Server ``i`` serves partition ``i`` modulo that number; the cluster goes on
            while one server of each is up. None: one server serves each.
        clock: Monotonic seconds.
    """

    def __init__(
        self, servers: Sequence[Watched], *, interval_s: float, timeout_s: float,
        lost_after_s: float, num_partitions: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._interval_s, self._timeout_s, self._lost_after_s = interval_s, timeout_s, lost_after_s
        self._clock = clock
        self._servers = [_Server(one, clock()) for one in servers]
        self._num_partitions = num_partitions or len(servers)
        self._over = threading.Event()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.error: ServerDiedError | None = None
        """Why the cluster cannot go on; None: it can."""

    def start(self) -> None:
        """Watch from now on."""
        self._thread = new_thread(
            target=self._run, name="ray watchdog", on_death=nothing_hangs_on_it
        )
        self._thread.start()

    def close(self) -> None:
        """Watch no more. Idempotent."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def health(self) -> list[dict[str, Any]]:
        """Return what each server said last, and ``silent_s``: how long ago that was."""
        now = self._clock()
        return [{**one.health, "silent_s": now - one.heard} for one in self._servers]

    def wait_for(self, done: Callable[[list[dict[str, Any]]], bool], timeout_s: float) -> bool:
        """Wait until ``done`` says so of `health`, or the cluster failed; False: too late."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self.error is not None or done(self.health()), timeout_s
            )

    def wait_until_all_serve(self, deadline: float, timeout_s: float) -> None:
        """Return when all servers serve.

        Args:
            deadline: Until when (`time.monotonic`).
            timeout_s: The limit to name in the error.

        Raises:
            PeerError: One ended before it served: it would end again.
            PeerTimeoutError: The time is over.
        """

        def broken(servers: list[dict[str, Any]]) -> list[int]:
            return [i for i, one in enumerate(servers) if one.get("why") and not one.get("served")]

        def decided(servers: list[dict[str, Any]]) -> bool:
            return bool(broken(servers)) or all(one["state"] == "serving" for one in servers)

        in_time = self.wait_for(decided, max(0.0, deadline - time.monotonic()))
        servers = self.health()
        # ahead of the watchdog's error, which has no lines of the log
        if failed := broken(servers):
            one = servers[failed[0]]
            log = "\n".join(one.get("last_log", []))
            raise PeerError(f"storage server {failed[0]} did not start: {one['why']}\n{log}")
        if self.error is not None:
            raise self.error
        if not in_time:
            states = {rank: one["state"] for rank, one in enumerate(servers)}
            raise PeerTimeoutError(
                f"not all storage servers serve after {timeout_s:.0f} s: {states}; see the logs of "
                "their actors, or raise start_timeout"
            )

    def _run(self) -> None:
        # Much more often than it asks: answers are only found by looking.
        while not self._over.wait(min(0.1, self._interval_s)):
            try:
                self.step()
            except Exception:  # it must go on: nobody else looks
                _log.exception("cannot look after the storage servers")
            with self._changed:
                # after each look: `wait_for` judges by what all servers said last
                self._changed.notify_all()

    def step(self) -> None:
        """Look at each server once; never waits."""
        for rank, server in enumerate(self._servers):
            self._look(rank, server)

    def _look(self, rank: int, server: _Server) -> None:
        now = self._clock()
        if server.asked is None:
            # without a pause until it has said something: its start is known as soon as possible
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
            # once, until it is heard: a second kill would end the start that the first one caused
            server.killed = True
            server.way.kill()

    def _heard(self, rank: int, server: _Server, answer: dict[str, Any]) -> None:
        before, server.health = server.health, answer
        server.heard, server.asked, server.killed = self._clock(), None, False
        # heard of, so back; one without restarts answers still, and stays lost, so that it is said
        # once
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
        # those whose rank is the partition's number modulo the number of partitions
        replicas = self._servers[partition :: self._num_partitions]
        if self.error is None and all(replica.lost for replica in replicas):
            # kept, should a server come back later: loaders may have ended by it
            self.error = ServerDiedError(words)
