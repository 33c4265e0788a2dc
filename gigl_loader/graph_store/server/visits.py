"""Processes that use a storage server without having joined a job."""

from collections import Counter

from gigl_loader.runtime.transport import EndReason


class Visits:
    """Connections of each session, for processes that own producers and have not joined.

    ::

        connection -> here --the last one ends by a goodbye--------------------> left
                      here --it is cut off--> missing --``grace_s`` passed-----> left
                      here <--connection----- missing

    Sessions of members are counted, too: a process may join after it has created a producer.

    Args:
        grace_s: Seconds for which a process may have no connection. It does not know that its
            connection was cut off before its next request, so this is an outage that it survives.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._open: Counter[str] = Counter()
        self._missing_until: dict[str, float] = {}

    def note_connection(self, session: str) -> None:
        """Note a connection."""
        self._open[session] += 1
        self._missing_until.pop(session, None)

    def note_end(self, session: str, end: EndReason, now: float) -> bool:
        """Note the end of a connection; return whether its process left with it."""
        self._open[session] -= 1
        if self._open[session] > 0:
            return False
        del self._open[session]
        # a replaced one may end before the connection that replaces it is noted
        if end in (EndReason.GONE, EndReason.SILENT, EndReason.REPLACED):
            self._missing_until[session] = now + self._grace_s
            return False
        return True

    def overdue(self, now: float) -> list[str]:
        """Return, once, the sessions whose time to come back has passed."""
        sessions = [session for session, until in self._missing_until.items() if now >= until]
        for session in sessions:
            del self._missing_until[session]
        return sessions
