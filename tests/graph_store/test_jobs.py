"""Who is here and what they hear; which job is served, where ranks are killed and come again."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from gigl_loader.errors import ConfigError, PeerError
from gigl_loader.graph_store.server.attendance import KILLED_GRACE_S, SILENT_GRACE_S, Attendance
from gigl_loader.graph_store.server.job_numbers import JobNumbers
from gigl_loader.graph_store.server.job_rules import EndedJob, JobRules
from gigl_loader.graph_store.server.member import Member
from gigl_loader.graph_store.server.visits import Visits
from gigl_loader.graph_store.wire.membership import Join, Role
from gigl_loader.runtime.transport import EndReason


def client(rank: int, world_size: int = 2, job: int | None = None, name: str = "train") -> Member:
    join = Join(
        role=Role.CLIENT, rank=rank, num_servers=1, world_size=world_size, job=job, job_name=name
    )
    return Member(f"session of {rank}", join, f"rank {rank}", job=job)


class Jobs(JobRules):
    """The rules with their numbers; they settle in two steps: some jobs begin, or some end."""

    def __init__(self, max_jobs: int) -> None:
        self.numbers = JobNumbers()
        super().__init__(self.numbers, max_jobs)

    @property
    def served(self) -> int:
        return self.numbers.served

    def begin(self) -> list[tuple[str, int, list[int]]]:
        """Let jobs begin; return their names, numbers and ranks."""
        found = self.settle()
        assert found.ended == ()
        return [(job.name, job.number, sorted(job.ranks)) for job in found.begun]

    def end(self, now: float) -> tuple[EndedJob, ...]:
        found = self.settle(now, may_begin=False)
        assert found.begun == ()
        return found.ended


def joined(*members: Member, max_jobs: int = 16) -> Jobs:
    jobs = Jobs(max_jobs)
    for member in members:
        jobs.join(member)
    return jobs


def leave(jobs: Jobs, *members: Member, now: float = -math.inf) -> list[tuple[str, int]]:
    """Let clients leave; return the jobs that end by it."""
    for member in members:
        jobs.leave(member)
    return [(ended.name, ended.number) for ended in jobs.end(now)]


def test_a_job_does_not_begin_with_one_that_was_killed() -> None:
    killed, again = client(0), client(0)
    jobs = joined(killed)
    killed.give_up_at = 1.0
    jobs.join(client(1))
    assert jobs.begin() == []
    jobs.join(again)  # before the other one is given up
    assert jobs.begin() == [("train", 0, [0, 1])]
    assert leave(jobs, killed) == []
    assert (again.job, killed.job) == (0, None)


def test_another_number_of_ranks_comes_after_those_that_were_killed() -> None:
    killed = [client(rank, 3) for rank in range(2)]
    jobs = joined(*killed)
    for one in killed:
        one.give_up_at = 1.0
    for rank in range(2):
        jobs.join(client(rank))
    assert jobs.begin() == [("train", 0, [0, 1])]


def test_ranks_that_a_restarted_server_never_saw_hold_up_no_next_job() -> None:
    jobs, back = Jobs(16), client(0, 3, job=4)
    jobs.readmit(back, others_until=100.0)
    jobs.numbers.mark_used(4)
    assert leave(jobs, back) == [], "the others may only be slow to notice"
    jobs.join(client(0))
    assert leave(jobs) == []
    jobs.join(client(1))
    assert leave(jobs) == [("train", 4)]
    assert jobs.begin() == [("train", 5, [0, 1])]


def test_ranks_that_left_before_the_server_was_restarted_are_not_waited_for_without_end() -> None:
    jobs, back = Jobs(16), client(1, 2, job=4)
    jobs.readmit(back, others_until=100.0)
    assert leave(jobs, back) == []
    assert leave(jobs, now=99.0) == [], "rank 0 may only be slow to notice"
    assert leave(jobs, now=100.0) == [("train", 4)]
    with pytest.raises(PeerError, match=r"job 4 \('train'\) .* over: compute process 0 was away"):
        jobs.readmit(client(0, 2, job=4), others_until=200.0)
    assert (jobs.num_running, jobs.served) == (0, 1)


def test_a_job_that_was_given_up_goes_on_when_it_comes_back_before_another() -> None:
    """As after a server stood still for longer than its clients wait for it."""
    members = [client(0), client(1)]
    jobs = joined(*members)
    jobs.begin()
    for member in members:
        member.give_up_at = 1.0
    assert leave(jobs, *members) == [("train", 0)]
    assert jobs.served == 1
    back, other = client(1, job=0), client(0, 1, name="other")
    jobs.join(other)
    assert jobs.begin() == [("other", 1, [0])], "of another name, which stands in nobody's way"
    jobs.readmit(back, others_until=100.0)
    assert (jobs.num_running, jobs.served) == (2, 0), "it was counted too early"
    back.give_up_at = 2.0
    assert leave(jobs, back) == []
    assert leave(jobs, now=100.0) == [("train", 0)]
    jobs.join(client(0))
    with pytest.raises(PeerError, match=r"job 0 .* is over"):  # another one has begun to gather
        jobs.readmit(client(1, job=0), others_until=200.0)


def test_a_job_that_was_given_up_is_over_once_its_next_start_ran() -> None:
    first, second = client(0, 1), client(0, 1)
    jobs = joined(first)
    jobs.begin()
    first.give_up_at = 1.0
    assert leave(jobs, first) == [("train", 0)]
    jobs.join(second)
    assert jobs.begin() == [("train", 1, [0])]
    assert leave(jobs, second) == [("train", 1)]
    with pytest.raises(PeerError, match=r"job 0 .* is over: compute process 0 was away for too"):
        jobs.readmit(client(0, 1, job=0), others_until=100.0)
    assert (jobs.num_running, jobs.served) == (0, 2)


def test_who_cannot_be_of_a_job_is_refused_and_the_next_one_waits() -> None:
    first, other, early = client(0), client(1), client(0, 5)
    jobs = joined(first)
    with pytest.raises(ConfigError, match="'train' has 3 processes, the others say 2"):
        jobs.join(client(1, 3))
    with pytest.raises(ConfigError, match=r"two processes joined as compute rank 0 .* job="):
        jobs.join(client(0))
    with pytest.raises(ConfigError, match=r"compute rank 2 is not in \[0, 2\)"):
        jobs.join(client(2))
    assert jobs.num_waiting == 1
    assert jobs.why_waiting([2, 1]) == {
        "train": "1 of 2 compute processes of job 'train' are here; storage servers [1, 2] have "
        "not loaded their partitions yet"
    }
    jobs.join(other)
    jobs.begin()
    jobs.join(early)
    assert jobs.num_waiting == 1
    assert jobs.why_waiting([])["train"] == (
        "an earlier job 'train' is still served; 2 of its clients are here. A job of another name "
        "need not wait for it"
    )
    assert leave(jobs, first) == []
    assert leave(jobs, other) == [("train", 0)]
    assert jobs.why_waiting([])["train"].startswith("1 of 5 compute processes"), "the next"


def test_more_jobs_than_are_served_at_once_begin_as_they_arrived() -> None:
    slow = client(0, 2, name="slow")
    one, two, three = (client(0, 1, name=name) for name in ("one", "two", "three"))
    jobs = joined(one, slow, two, three, max_jobs=1)
    assert jobs.begin() == [("one", 0, [0])]
    assert jobs.why_waiting([])["three"] == (
        "1 of 1 compute processes of job 'three' are here; 1 jobs are served, the most at a time "
        "(--max-jobs), and 1 wait before it"
    )
    assert jobs.begin() == []
    assert leave(jobs, one) == [("one", 0)]
    assert jobs.begin() == [("two", 1, [0])], "one that is not complete takes nobody's turn"
    jobs.join(client(1, 2, name="slow"))
    assert leave(jobs, two) == [("two", 1)]
    assert jobs.begin() == [("slow", 2, [0, 1])], "it arrived before the third"
    assert jobs.served == 2


def test_of_a_job_that_is_stopped_nobody_is_awaited() -> None:
    members, queued = [client(0, job=7), client(1, job=7)], client(0)
    other = client(0, 1, name="other")
    jobs = joined(other)
    jobs.begin()
    jobs.readmit(members[0], others_until=100.0)
    jobs.numbers.mark_used(7)
    jobs.join(queued)
    assert jobs.stop("train") == [members[0], queued]
    assert jobs.numbers.stopped == (7,)
    assert leave(jobs, members[0], queued) == [("train", 7)]
    assert jobs.num_running == 1, "the other one"
    with pytest.raises(ConfigError, match=r"there is no job 'train'; .*: 'other'"):
        jobs.stop("train")
    jobs.join(queued)
    assert jobs.stop("train") == [queued]
    assert jobs.numbers.stopped == (7,), "it has no number"
    leave(jobs, queued)
    jobs.join(client(0, 1))
    assert jobs.begin() == [("train", 8, [0])], "its name may be used again"


def test_a_number_has_one_name() -> None:
    member = client(0, 1)
    jobs = joined(member)
    jobs.begin()
    with pytest.raises(ConfigError, match=r"job 0 has the name 'train', .* says 'other'"):
        jobs.numbers.check(client(0, 1, job=0, name="other").join)
    assert leave(jobs, member) == [("train", 0)]


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
    visits.note_connection("one")
    visits.note_connection("one")
    assert not visits.note_end("one", EndReason.JOB_OVER, 0.0), "another connection is there"
    assert visits.note_end("one", EndReason.JOB_OVER, 0.0)
    for end in (EndReason.GONE, EndReason.SILENT, EndReason.REPLACED):
        visits.note_connection("one")
        assert not visits.note_end("one", end, 10.0), "it may come back"
        assert visits.overdue(14.9) == []
    visits.note_connection("one")
    assert visits.overdue(100.0) == [], "it came back"
    assert not visits.note_end("one", EndReason.GONE, 100.0)
    assert visits.overdue(105.0) == ["one"]
    assert visits.overdue(105.0) == [], "once"


@pytest.fixture
def here() -> tuple[Attendance, Member, Any]:
    """Attendance, a client that is here, and the connection of its watch."""
    attendance, member = Attendance(), client(0)
    peer = SimpleNamespace(session=member.session)
    attendance.add(member)
    attendance.note_connection(member, peer)
    return attendance, member, peer


@pytest.mark.parametrize(
    ("end", "grace_s"), [(EndReason.GONE, KILLED_GRACE_S), (EndReason.SILENT, SILENT_GRACE_S)]
)
def test_who_was_cut_off_may_come_back_for_a_while(
    end: EndReason, grace_s: float, here: tuple[Attendance, Member, Any]
) -> None:
    attendance, member, peer = here
    assert attendance.note_end(peer, end, now=100.0) is None
    assert attendance.overdue(100.0 + 0.9 * grace_s) == []
    assert attendance.overdue(100.0 + grace_s) == [member]
    again = SimpleNamespace(session=member.session)
    attendance.note_connection(member, again)
    assert attendance.overdue(1e9) == []
    assert attendance.note_end(peer, EndReason.SHUTDOWN, now=101.0) is None, (
        "the former connection's end"
    )
    assert attendance.note_end(again, EndReason.REPLACED, now=101.0) is None
    assert attendance.overdue(1e9) == []
    assert attendance.note_end(again, EndReason.JOB_OVER, now=101.0) is member, (
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
    assert attendance.remove(member)
    assert not attendance.remove(member), "that was done"
    assert attendance.at(Role.CLIENT, 0) == []
    for seen in (0, 5):
        with pytest.raises(PeerError, match="was given up: its producers have ended"):
            attendance.find(member.session, seen)
    for rank in range(1, 10_001):
        attendance.add(client(rank))
        attendance.remove(attendance.at(Role.CLIENT, rank)[0])
    assert attendance.find(member.session, 0) is None, "the oldest is forgotten"


def test_a_later_server_keeps_the_position_of_the_one_before() -> None:
    attendance, join = Attendance(), Join(role=Role.SERVER, rank=1, num_servers=2)
    former, later = Member("a", join, "server 1"), Member("b", join, "server 1")
    attendance.add(former)
    attendance.add(later)
    assert attendance.at(Role.SERVER, 1) == [former, later]
    attendance.remove(former)
    assert attendance.servers == {1: later}
    attendance.remove(later)
    assert (attendance.servers, attendance.members) == ({}, {})


def test_a_server_that_was_started_again_gives_no_number_twice() -> None:
    """It has counted no job; two jobs of one number would have each other's producers."""
    members = [client(0), client(1)]
    jobs = joined(*members)
    jobs.numbers.mark_used(3)  # another server had clients of it
    assert jobs.begin() == [("train", 4, [0, 1])]
    other = client(0, job=3, name="other")
    jobs.readmit(other, others_until=100.0)  # it lives, and only now came back
    assert jobs.num_running == 2
    assert leave(jobs, other, now=100.0) == [("other", 3)]
    with pytest.raises(PeerError, match=r"job 2 .* was away while .* started again, as number 4"):
        jobs.readmit(client(0, job=2), others_until=100.0)
    assert leave(jobs, *members) == [("train", 4)]
    with pytest.raises(PeerError, match=r"job 4 .* is over"):
        jobs.readmit(client(0, job=4), others_until=100.0)
    jobs.numbers.mark_used(7)
    jobs.join(client(0, 1))
    assert jobs.begin() == [("train", 8, [0])]


def test_a_job_that_comes_back_while_its_next_start_gathers_is_served_first() -> None:
    """Server 0 was restarted; clients of the next start were there before those that run."""
    early, back = client(0), [client(rank, job=4) for rank in range(2)]
    jobs = joined(early)
    for member in back:
        jobs.readmit(member, others_until=100.0)
    jobs.join(client(1))
    assert jobs.begin() == []
    jobs.numbers.mark_used(4)
    assert leave(jobs, *back) == [("train", 4)]
    assert jobs.begin() == [("train", 5, [0, 1])]
