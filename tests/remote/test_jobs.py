"""Who is here and what they hear; which job is served, where ranks are killed and come again."""

from types import SimpleNamespace
from typing import Any

import pytest

from gigl_loader.errors import ConfigError, PeerError
from gigl_loader.server.jobs import (
    KILLED_GRACE_S,
    SILENT_GRACE_S,
    Attendance,
    JobBook,
    Member,
    Visits,
)
from gigl_loader.transport import EndReason
from gigl_loader.wire.membership import Join, Role


def client(rank: int, world_size: int = 2, job: int | None = None) -> Member:
    join = Join(role=Role.CLIENT, rank=rank, num_servers=1, world_size=world_size, job=job)
    return Member(f"session of {rank}", join, f"rank {rank}", job=job)


def joined(book: JobBook, *members: Member) -> JobBook:
    for member in members:
        book.join(member)
    return book


def test_a_job_does_not_begin_with_one_that_was_killed() -> None:
    killed = client(0)
    book = joined(JobBook(), killed)
    killed.gone_at = 1.0
    book.join(client(1))
    assert not book.complete
    book.join(client(0))  # before the other one is given up
    assert book.complete
    assert not book.leave(killed)
    assert book.complete


def test_another_number_of_ranks_comes_after_those_that_were_killed() -> None:
    killed = [client(rank, 3) for rank in range(2)]
    book = joined(JobBook(), *killed)
    for one in killed:
        one.gone_at = 1.0
    assert joined(book, client(0), client(1)).complete


def test_ranks_that_a_restarted_server_never_saw_hold_up_no_next_job() -> None:
    book, back = JobBook(), client(0, 3, job=4)
    book.readmit(back, others_until=100.0)
    assert book.running
    assert book.unseen == {1, 2}
    assert not book.leave(back), "the others may only be slow to notice"
    book.join(client(0))
    assert not book.end_if_over()
    book.join(client(1))
    assert book.end_if_over()
    assert (book.job, book.running) == (5, False)
    assert joined(book, *book.take_queued()).complete


def test_ranks_that_left_before_the_server_was_restarted_are_not_waited_for_without_end() -> None:
    book, back = JobBook(), client(1, 2, job=4)
    book.readmit(back, others_until=100.0)
    assert not book.leave(back)
    assert not book.end_if_over(now=99.0), "rank 0 may only be slow to notice"
    assert book.end_if_over(now=100.0)
    assert (book.job, book.running) == (5, False)
    with pytest.raises(PeerError, match=r"job 4 .* is over: compute process 0 was away"):
        book.readmit(client(0, 2, job=4), others_until=200.0)
    assert not book.running


def test_a_job_that_was_given_up_goes_on_when_it_comes_back_before_another() -> None:
    """As after a server stood still for longer than its clients wait for it."""
    book = joined(JobBook(), client(0), client(1))
    book.running = book.complete
    for member in list(book.present.values()):
        member.gone_at = 1.0
    assert [book.leave(one) for one in list(book.present.values())] == [False, True]
    back = client(1, job=0)
    book.readmit(back, others_until=100.0)
    assert (book.job, book.running, book.unseen) == (0, True, {0})
    assert book.present == {1: back}
    back.gone_at = 2.0
    book.leave(back)
    assert book.end_if_over(now=100.0)
    book.join(client(0))
    with pytest.raises(PeerError, match=r"job 0 .* is over"):  # another one has begun to gather
        book.readmit(client(1, job=0), others_until=200.0)


def test_who_cannot_be_of_a_job_is_refused_and_the_next_one_waits() -> None:
    book = joined(JobBook(), client(0))
    with pytest.raises(ConfigError, match="says that the job has 3 processes, the others say 2"):
        book.join(client(1, 3))
    with pytest.raises(ConfigError, match="two processes joined as compute rank 0"):
        book.join(client(0))
    with pytest.raises(ConfigError, match=r"compute rank 2 is not in \[0, 2\)"):
        book.join(client(2))
    assert (len(book.present), book.num_waiting) == (1, 1)
    assert book.describe([2, 1]) == (
        "1 of 2 compute processes are here; storage servers [1, 2] have not loaded their "
        "partitions yet"
    )
    other, early = client(1), client(0, 5)
    book.join(other)
    book.running = book.complete
    book.join(early)
    assert (book.is_waiting(early), book.is_waiting(other), book.num_waiting) == (True, False, 1)
    assert book.describe([]) == "job 0 is still served; 2 of its clients are here"
    assert not book.leave(book.present[0])
    assert book.leave(other)
    assert (book.job, book.take_queued(), book.queued) == (1, [early], [])


def test_news_are_told_once_and_the_first_ones_always() -> None:
    member = client(0)
    first = member.wait(0)
    assert not first.done()
    member.tell(status="")
    assert (first.result(0).number, first.result(0).status) == (1, ""), "though nothing is new"
    second = member.wait(1)
    member.tell(status="")
    assert not second.done(), "it knows that"
    member.tell(status="one is missing")
    assert second.result(0).number == 2
    assert member.wait(1).result(0).status == "one is missing", "its connection lost the answer"
    third = member.wait(2)
    fourth = member.wait(2)
    assert third.result(0).number == 2, "of a connection that the fourth one's has replaced"
    fourth.cancel()
    member.tell(jobs_served=1)
    assert member.news.number == 3


def test_a_visit_lasts_as_long_as_one_connection_and_outlives_an_outage() -> None:
    visits = Visits(grace_s=5.0)
    visits.came("one")
    visits.came("one")
    assert not visits.ended("one", EndReason.JOB_OVER, 0.0), "another connection is there"
    assert visits.ended("one", EndReason.JOB_OVER, 0.0)
    for end in (EndReason.GONE, EndReason.SILENT, EndReason.REPLACED):
        visits.came("one")
        assert not visits.ended("one", end, 10.0), "it may come back"
        assert visits.overdue(14.9) == []
    visits.came("one")
    assert visits.overdue(100.0) == [], "it came back"
    assert not visits.ended("one", EndReason.GONE, 100.0)
    assert visits.overdue(105.0) == ["one"]
    assert visits.overdue(105.0) == [], "once"


@pytest.fixture
def here() -> tuple[Attendance, Member, Any]:
    """Attendance, a client that is here, and the connection of its watch."""
    attendance, member = Attendance(), client(0)
    peer = SimpleNamespace(session=member.session)
    attendance.came(member)
    attendance.returned(member, peer)
    return attendance, member, peer


@pytest.mark.parametrize(
    ("end", "grace_s"), [(EndReason.GONE, KILLED_GRACE_S), (EndReason.SILENT, SILENT_GRACE_S)]
)
def test_who_was_cut_off_may_come_back_for_a_while(
    end: EndReason, grace_s: float, here: tuple[Attendance, Member, Any]
) -> None:
    attendance, member, peer = here
    assert attendance.ended(peer, end, now=100.0) is None
    assert attendance.overdue(100.0 + 0.9 * grace_s) == []
    assert attendance.overdue(100.0 + grace_s) == [member]
    again = SimpleNamespace(session=member.session)
    attendance.returned(member, again)
    assert attendance.overdue(1e9) == []
    assert attendance.ended(peer, EndReason.SHUTDOWN, now=101.0) is None, (
        "the former connection's end"
    )
    assert attendance.ended(again, EndReason.REPLACED, now=101.0) is None
    assert attendance.overdue(1e9) == []
    assert attendance.ended(again, EndReason.JOB_OVER, now=101.0) is member, (
        "at once, with a goodbye"
    )
    assert member.why_gone == "left (job over)"


def test_who_was_given_up_is_told_so_and_a_stranger_that_the_server_is_new(
    here: tuple[Attendance, Member, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    attendance, member, _ = here
    assert attendance.find(member.session, 5) is member
    assert attendance.find("another", 0) is None
    with pytest.raises(PeerError, match="was restarted and does not know this process"):
        attendance.find("another", 5)
    assert attendance.left(member)
    assert not attendance.left(member), "that was done"
    assert attendance.at(Role.CLIENT, 0) == []
    for seen in (0, 5):
        with pytest.raises(PeerError, match="was given up: its producers have ended"):
            attendance.find(member.session, seen)
    for rank in range(1, 10_001):
        attendance.came(client(rank))
        attendance.left(attendance.at(Role.CLIENT, rank)[0])
    assert attendance.find(member.session, 0) is None, "the oldest is forgotten"


def test_a_later_server_keeps_the_position_of_the_one_before() -> None:
    attendance, join = Attendance(), Join(role=Role.SERVER, rank=1, num_servers=2)
    former, later = Member("a", join, "server 1"), Member("b", join, "server 1")
    attendance.came(former)
    attendance.came(later)
    assert attendance.at(Role.SERVER, 1) == [former, later]
    attendance.left(former)
    assert attendance.servers == {1: later}
    attendance.left(later)
    assert (attendance.servers, attendance.members) == ({}, {})


def test_a_server_that_was_started_again_gives_no_number_twice() -> None:
    """It has counted no job; two jobs of one number would have each other's producers."""
    book = joined(JobBook(), client(0), client(1))
    book.heard_of(3)  # another server had clients of it
    assert book.complete
    book.begin()
    assert (book.job, [one.job for one in book.present.values()]) == (4, [4, 4])
    book.readmit(client(0, job=3), others_until=100.0)  # it lives, and only now came back
    assert (book.job, len(book.present)) == (4, 2)
    for member in list(book.present.values()):
        book.leave(member)
    with pytest.raises(PeerError, match=r"job 4 .* is over"):
        book.readmit(client(0, job=4), others_until=100.0)
    book.heard_of(7)
    joined(book, client(0), client(1)).begin()
    assert book.job == 8
