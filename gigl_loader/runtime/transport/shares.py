"""How responses to several parties share a link: each party gets as many bytes as another.

TCP shares a full link by connections, so a party with fifty connections would get fifty times the
bytes of one with one::

    response --take()--> so many bytes may be sent --look()--> so many were acknowledged
                    `--> not now: its party is ahead of another one that is sending, too

A party that is ahead waits for another one only while that makes use of it: see `ByteShares`.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager

ALONE_BYTES = 2 << 20
"""Bytes of one turn of a party that is alone."""
_TURNS_BYTES = 1 << 20
"""Bytes of one turn of each response of a party, together, if there are several parties."""
_LEAST_TURN, _MOST_TURN = 64 << 10, 256 << 10
"""Bounds of one turn in bytes: each takes a thread's wake-up. Powers of two."""
SMALL_BYTES = 16 << 10
"""Responses below this take no turn, and one that has waited for long may send this much."""
LOOK_S = 0.025
"""Seconds between two looks at a response that waits for its turn, or for the kernel."""
_LEAD_BYTES = 1 << 20
"""How far a party may be ahead of another one. Fewer turns wait than with one of these."""
_CREDIT_BYTES = 16 << 20
"""Most that is owed to a party which paused. Others may send as much before it gets half again."""
# The kernel sends a lost packet again after 200 ms, and a full queue alone may take 50 ms.
_STALLED_S = 0.25
"""A party without progress for so long is not waited for: its process is stopped, for example."""
_PAUSE_S = 0.005
"""The same after a response, as most callers have sent their next request already."""
_FORGET_S = 1.0
"""A party that pauses for longer begins anew."""
_LONGEST_WAIT_S = 1.0
"""Longest wait of a response for its turn: callers take silence for the loss of this process."""
_WINDOW_S = 0.3
"""Over this many seconds the bytes are counted that tell whether waiting is of use."""
_USEFUL = 0.75
"""Waiting is of use if at least this share of the bytes per second is left by it."""
_WINDOWS_TO_LOOK_AGAIN = 20
"""Windows in which parties wait, before one in which they do not: the link may have changed."""
_SHORTEST_REST, _LONGEST_REST = 8, 128
"""Windows in which nobody waits after waiting was found to be of no use; doubled each time."""


class ByteShares:
    """Gives parties that send at the same time equal numbers of bytes.

    Each party has a count of the bytes that it was allowed to send. A party that is ahead of
    another one by more than a megabyte waits, unless the other one

    - has no response under way, or none of which bytes were acknowledged in the last quarter
      second, such as a party whose process is stopped;
    - would not go faster: its reader or its own part of the network is slow. That shows in the
      bytes of all parties per second, which fall by more than a quarter while one waits. Nobody
      waits then for some seconds.

    A party that comes begins at the least count of the others, less what that one has been allowed
    and may not have sent. One that comes back within a second is owed 16 MiB at most. A party alone
    does not wait. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parties: dict[Hashable, _Party] = {}
        self.trial = Trial()
        """Whether parties have to wait at present."""

    def sending(self, name: Hashable, nbytes: int, acknowledged: Callable[[], int]) -> "Sending":
        """Return the share of a response, which is a context manager.

        Args:
            name: The party that it belongs to.
            nbytes: Bytes of the response, at least 1.
            acknowledged: Returns how many bytes of its connection the peer's machine has received
                since the last call.
        """
        with self._lock:
            now = time.monotonic()
            party = self._parties.get(name)
            if party is None:
                self._parties = {
                    key: one
                    for key, one in self._parties.items()
                    if one.open or now - one.seen_at < _FORGET_S
                }
                party = self._parties[name] = _Party()
            sending = Sending(self, party, nbytes, acknowledged)
            party.open.add(sending)
            self._note_progress(party, now)
        return sending

    # -- for `Sending` ----------------------------------------------------------------------------

    def ask(self, sending: "Sending") -> int:
        """Return the bytes of a turn; 0: it waits, and its ``woken`` is set when that is over."""
        with self._lock:
            now, party = time.monotonic(), sending.party
            if not sending.handed:
                if sending.waits_since is None:
                    sending.waits_since = now
                    sending.woken.clear()
                    party.waiting.append(sending)
                self._hand_out(now)
                if not sending.handed and now - sending.waits_since >= _LONGEST_WAIT_S:
                    party.waiting.remove(sending)
                    self._hand(sending, SMALL_BYTES, now)
            handed, sending.handed = sending.handed, 0
            return handed

    def note(self, sending: "Sending", nbytes: int) -> None:
        """Note that ``nbytes`` more of a response's connection were acknowledged."""
        with self._lock:
            now = time.monotonic()
            self._note_progress(sending.party, now)
            if self.trial.note(nbytes, now):
                self._make_equal(now)
            self._hand_out(now)

    def end(self, sending: "Sending") -> None:
        """End a response, all of which has been sent or is given up."""
        with self._lock:
            now, party = time.monotonic(), sending.party
            if sending.waits_since is not None:
                party.waiting.remove(sending)
                sending.waits_since = None
            if party.makes_progress(now):
                self._note_progress(party, now)  # its pause begins
            party.open.remove(sending)
            self._hand_out(now)

    # -- locked -----------------------------------------------------------------------------------

    def _note_progress(self, party: "_Party", now: float) -> None:
        paused_s = now - party.seen_at
        if paused_s >= _STALLED_S:  # else it was waited for, and is owed what it is behind
            others = self._others(party, now)
            if others:
                least = min(others, key=lambda one: one.count)
                credit = _CREDIT_BYTES
                if paused_s >= _FORGET_S:  # what was allowed before may be sent only now
                    credit = min(credit, sum(one.turn for one in least.open))
                party.count = max(party.count, least.count - credit)
            if paused_s >= _FORGET_S and len(others) == 1:
                self.trial = Trial()  # what was found out of a party alone says nothing
        party.seen_at = now

    def _others(self, party: "_Party", now: float) -> "list[_Party]":
        return [
            one
            for one in self._parties.values()
            if one is not party and (one.waiting or now - one.seen_at < _FORGET_S)
        ]

    def _hand_out(self, now: float) -> None:
        """Give turns to those that wait and may send, the parties with fewest bytes first."""
        if not any(party.waiting for party in self._parties.values()):
            return
        for party in sorted(self._parties.values(), key=lambda one: one.count):
            if party.waiting:
                others = self._others(party, now)
                while party.waiting and self._may_send(party, others, now):
                    turn_bytes = party.turn_bytes() if others else 0
                    self._hand(party.waiting.popleft(), turn_bytes, now)

    def _may_send(self, party: "_Party", others: "list[_Party]", now: float) -> bool:
        waited_for = [one.count for one in others if one.makes_progress(now)]
        is_ahead = bool(waited_for) and party.count > min(waited_for) + _LEAD_BYTES
        if is_ahead and self.trial.is_on:
            self.trial.has_waited = True
            return False
        return True

    def _hand(self, sending: "Sending", turn_bytes: int, now: float) -> None:
        """Give a response its turn; ``turn_bytes`` is 0 for a party that is alone."""
        handed = min(turn_bytes or ALONE_BYTES, sending.left)
        sending.left -= handed
        sending.handed = sending.turn = handed
        sending.waits_since, sending.turn_bytes = None, turn_bytes
        sending.party.seen_at = now  # it has not come back: it may have waited here
        sending.party.count += handed
        sending.woken.set()

    def _make_equal(self, now: float) -> None:
        most = max(party.count for party in self._parties.values())
        for party in self._parties.values():
            party.count = most


class _Party:
    """Those that share one count of bytes."""

    def __init__(self) -> None:
        self.count = 0
        """Bytes that it was allowed to send; only differences between parties mean something."""
        self.open: set[Sending] = set()
        """Its responses under way."""
        self.waiting: deque[Sending] = deque()
        """Its responses that wait for a turn, in order."""
        self.seen_at = -math.inf
        """Time at which a response began, got a turn, or made progress."""

    def turn_bytes(self) -> int:
        """Return the bytes of a turn: all connections together keep about a megabyte unsent."""
        turn = _MOST_TURN
        while turn > _LEAST_TURN and turn * len(self.open) > _TURNS_BYTES:
            turn //= 2
        return turn

    def makes_progress(self, now: float) -> bool:
        """Return whether others may have to wait for it."""
        return now - self.seen_at < (_STALLED_S if self.open else _PAUSE_S)


class Trial:
    """Finds out whether it is of use that parties wait: are as many bytes sent by all of them?

    ::

        off, 1 or 2 windows --> on, 20 windows, each compared with the last one that was off
                        <--          after these
         off, 8 to 128 windows <-- after two with too few bytes
    """

    def __init__(self) -> None:
        self.is_on = False
        """Whether parties that are ahead have to wait."""
        self.has_waited = False
        """Whether one has waited in this window."""
        # the first window has bytes in it that were sent before
        self._left, self._rest = 2, _SHORTEST_REST
        self._began_at: float | None = None
        self._nbytes, self._free_rate = 0, 0.0
        self._starts_equal, self._was_poor = True, False

    def note(self, nbytes: int, now: float) -> bool:
        """Count ``nbytes``; return whether all counts have to be equal from here on."""
        self._nbytes += nbytes
        if self._began_at is None:
            self._began_at = now
        took_s = now - self._began_at
        if took_s < _WINDOW_S:
            return False
        rate, has_waited = self._nbytes / took_s, self.has_waited
        self._began_at, self._nbytes, self.has_waited = now, 0, False
        if took_s >= 2 * _WINDOW_S:  # nothing was sent for a while
            return False
        self._left -= 1
        if not self.is_on:
            self._free_rate = rate
            if self._left <= 0:
                starts_equal, self._starts_equal = self._starts_equal, False
                self.is_on, self._left = True, _WINDOWS_TO_LOOK_AGAIN
                return starts_equal
            return False
        was_poor, self._was_poor = self._was_poor, has_waited and rate < _USEFUL * self._free_rate
        if was_poor and self._was_poor:  # one alone is often this process's own delay
            self.is_on, self._left, self._starts_equal = False, self._rest, True
            self._was_poor, self._rest = False, min(2 * self._rest, _LONGEST_REST)
        elif self._left <= 0 and not self._was_poor:
            self.is_on, self._left, self._rest = False, 1, _SHORTEST_REST
        return False


class Sending(AbstractContextManager["Sending"]):
    """One response's share; for one thread. See `ByteShares.sending`."""

    def __init__(
        self, shares: ByteShares, party: _Party, nbytes: int, acknowledged: Callable[[], int]
    ) -> None:
        self._shares, self.party, self.left = shares, party, nbytes
        self._acknowledged = acknowledged
        self.woken = threading.Event()
        self.handed = 0
        """Bytes of a turn that `take` has yet to return."""
        self.turn = 0
        """Bytes of the last turn."""
        self.waits_since: float | None = None
        """Time since which it is among those that wait."""
        self.turn_bytes = 0
        """Bytes of a whole turn, and the most that the kernel should keep unsent; 0: the party is
        alone, without a limit."""

    def take(self) -> int:
        """Return how many of the next bytes may be sent; 0: none were allowed for 25 ms.

        Raises:
            OSError: The connection is closed.
        """
        handed = self._shares.ask(self)
        if not handed:
            self.woken.wait(LOOK_S)
            self.look()
            handed = self._shares.ask(self)
        return handed

    def look(self) -> None:
        """Note how far the connection has come.

        Raises:
            OSError: The connection is closed.
        """
        acknowledged = self._acknowledged()
        if acknowledged:
            self._shares.note(self, acknowledged)

    def __exit__(self, *_: object) -> None:
        self._shares.end(self)
