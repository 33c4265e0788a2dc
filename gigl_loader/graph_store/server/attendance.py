"""Which members are here, away for a moment, or gone."""

from typing import Any

from gigl_loader.errors import PeerError
from gigl_loader.graph_store.server.latest import Latest
from gigl_loader.graph_store.server.member import Member
from gigl_loader.graph_store.wire.membership import Role
from gigl_loader.runtime.transport import EndReason

KILLED_GRACE_S = 1.0
"""Seconds after a connection was cut off without a goodbye: a live process is back within
milliseconds; a killed one is not, and its producers should end at once."""
SILENT_GRACE_S = 2.0
"""Seconds after the silence limit. Both ends of a cut link count from what they last heard, up to
a second apart, and a client must not be given up before it gives up itself."""
# Sessions with which a given-up process may come back, about 1 MB of them. Beyond that it is told
# that this server was restarted, which ends it as well.
_MOST_DEPARTED = 10_000

_GIVEN_UP = (
    "this process was out of reach for too long and was given up: its producers have ended; start "
    "the job again, with a longer network_timeout if the network needs it"
)


class Attendance:
    """Members by session: they come, stay over lost connections, and leave.

    ::

        watch() -> here --goodbye-------------------------------------> left
                   here --killed or silent--> missing --grace passed--> left
                   here <--watch() again----- missing
    """

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self._by_role_and_rank: dict[tuple[Role, int], dict[str, Member]] = {}
        self.servers: dict[int, Member] = {}
        """Storage servers by rank, the latest of each."""
        self._departed = Latest[str, str](_MOST_DEPARTED)
        """Why each of those that left would be refused."""

    def find(self, session: str, seen: int) -> Member | None:
        """Return the member of a session; None: the session is new.

        Raises:
            PeerError: It was here and was given up, or was a member of an earlier server process.
        """
        member = self.members.get(session)
        if member is None and session in self._departed:
            raise PeerError(self._departed[session])
        # it has seen news of the former server
        if member is None and seen > 0:
            raise PeerError(
                "this storage server was restarted and does not know this process: start the "
                "job again"
            )
        return member

    def add(self, member: Member) -> None:
        """Add a new member."""
        self.members[member.session] = member
        join = member.join
        self._by_role_and_rank.setdefault((join.role, join.rank), {})[member.session] = member
        if join.role is Role.SERVER:
            # a later member takes the place at once; `remove` of the former leaves it there
            self.servers[join.rank] = member

    def at(self, role: Role, rank: int) -> list[Member]:
        """Return the member of that rank, without a search through all members."""
        return list(self._by_role_and_rank.get((role, rank), {}).values())

    def note_connection(self, member: Member, peer: Any) -> None:
        """Note the current connection of a member's watch: the member is here."""
        member.peer, member.give_up_at = peer, None

    def note_end(self, peer: Any, end: EndReason, now: float) -> Member | None:
        """Note the end of a connection; return the member that left with it, if any."""
        member = self.members.get(peer.session)
        # a late report of the end of a connection that was replaced ends no member
        if member is None or member.peer is not peer or end is EndReason.REPLACED:
            return None
        if end not in (EndReason.GONE, EndReason.SILENT):
            member.why_gone = f"left ({end.value})"
            return member
        grace = KILLED_GRACE_S if end is EndReason.GONE else SILENT_GRACE_S
        member.give_up_at = now + grace
        member.why_gone = f"is gone without a goodbye ({end.value})"
        return None

    def overdue(self, now: float) -> list[Member]:
        """Return the members whose time to come back has passed."""
        return [
            m for m in self.members.values() if m.give_up_at is not None and now >= m.give_up_at
        ]

    def remove(self, member: Member) -> bool:
        """Forget a member; return False if that was done before."""
        if self.members.pop(member.session, None) is None:
            return False
        role_and_rank = (member.join.role, member.join.rank)
        self._by_role_and_rank[role_and_rank].pop(member.session)
        if not self._by_role_and_rank[role_and_rank]:
            del self._by_role_and_rank[role_and_rank]
        if self.servers.get(member.join.rank) is member:
            del self.servers[member.join.rank]
        self._departed[member.session] = member.news.refused or _GIVEN_UP
        return True
