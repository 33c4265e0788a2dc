"""Who is here and what they hear; which job is served, where ranks are killed and come again."""

import math
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import ConfigError, PeerError
from gigl_loader.graph_store.server.jobs import (
    KILLED_GRACE_S,
    SILENT_GRACE_S,
    Attendance,
    JobBook,
    Jobs,
    Member,
    Visits,
)
from gigl_loader.graph_store.wire.membership import Join, Role
from gigl_loader.runtime.transport import EndReason


def client(rank: int, world_size: int = 2, job: int | None = None, name: str = "train") -> Member:
    join = Join(
        role=Role.CLIENT, rank=rank, num_servers=1, world_size=world_size, job=job, job_name=name
    )
    return Member(f"session of {rank}", join, f"rank {rank}", job=job)


def joined(*members: Member, max_jobs: int = 16) -> Jobs:
    jobs = Jobs(max_jobs)
    for member in members:
        jobs.join(member)
    return jobs


def begun(jobs: Jobs) -> list[tuple[str, int | None, list[int]]]:
    """Let jobs begin; return their names, numbers and ranks."""
    return [(book.name, book.job, sorted(book.present)) for book in jobs.begin()]


def leave(jobs: Jobs, *members: Member, now: float = -math.inf) -> list[tuple[str, int]]:
    """Let clients leave; return the jobs that end by it."""
    for member in members:
        jobs.leave(member)
    return [(ended.name, ended.job) for ended in jobs.end_those_over(now)]


def test_a_job_does_not_begin_with_one_that_was_killed() -> None:
    killed, again = client(0), client(0)
    jobs = joined(killed)
    killed.gone_at = 1.0
    jobs.join(client(1))
    assert begun(jobs) == []
    jobs.join(again)  # before the other one is given up
    assert begun(jobs) == [("train", 0, [0, 1])]
    assert leave(jobs, killed) == []
    assert (again.job, killed.job) == (0, None)


def test_another_number_of_ranks_comes_after_those_that_were_killed() -> None:
    killed = [client(rank, 3) for rank in range(2)]
    jobs = joined(*killed)
    for one in killed:
        one.gone_at = 1.0
    for rank in range(2):
        jobs.join(client(rank))
    assert begun(jobs) == [("train", 0, [0, 1])]


def test_ranks_that_a_restarted_server_never_saw_hold_up_no_next_job() -> None:
    jobs, back = Jobs(16), client(0, 3, job=4)
    jobs.readmit(back, others_until=100.0)
    jobs.heard_of(4)
    assert leave(jobs, back) == [], "the others may only be slow to notice"
    jobs.join(client(0))
    assert leave(jobs) == []
    jobs.join(client(1))
    assert leave(jobs) == [("train", 4)]
    assert begun(jobs) == [("train", 5, [0, 1])]


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
        member.gone_at = 1.0
    assert leave(jobs, *members) == [("train", 0)]
    assert jobs.served == 1
    back, other = client(1, job=0), client(0, 1, name="other")
    jobs.join(other)
    assert begun(jobs) == [("other", 1, [0])], "of another name, which stands in nobody's way"
    jobs.readmit(back, others_until=100.0)
    assert (jobs.num_running, jobs.served) == (2, 0), "it was counted too early"
    back.gone_at = 2.0
    assert leave(jobs, back) == []
    assert leave(jobs, now=100.0) == [("train", 0)]
    jobs.join(client(0))
    with pytest.raises(PeerError, match=r"job 0 .* is over"):  # another one has begun to gather
        jobs.readmit(client(1, job=0), others_until=200.0)


def test_a_job_that_was_given_up_is_over_once_its_next_start_ran() -> None:
    first, second = client(0, 1), client(0, 1)
    jobs = joined(first)
    jobs.begin()
    first.gone_at = 1.0
    assert leave(jobs, first) == [("train", 0)]
    jobs.join(second)
    assert begun(jobs) == [("train", 1, [0])]
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
    assert jobs.describe([2, 1]) == {
        "train": "1 of 2 compute processes of job 'train' are here; storage servers [1, 2] have "
        "not loaded their partitions yet"
    }
    jobs.join(other)
    jobs.begin()
    jobs.join(early)
    assert jobs.num_waiting == 1
    assert jobs.describe([])["train"] == (
        "an earlier job 'train' is still served; 2 of its clients are here. A job of another name "
        "need not wait for it"
    )
    assert leave(jobs, first) == []
    assert leave(jobs, other) == [("train", 0)]
    assert jobs.describe([])["train"].startswith("1 of 5 compute processes"), "the next one gathers"


def test_more_jobs_than_are_served_at_once_begin_as_they_arrived() -> None:
    slow = client(0, 2, name="slow")
    one, two, three = (client(0, 1, name=name) for name in ("one", "two", "three"))
    jobs = joined(one, slow, two, three, max_jobs=1)
    assert begun(jobs) == [("one", 0, [0])]
    assert jobs.describe([])["three"] == (
        "1 of 1 compute processes of job 'three' are here; 1 jobs are served, the most at a time "
        "(--max-jobs), and 1 wait before it"
    )
    assert begun(jobs) == []
    assert leave(jobs, one) == [("one", 0)]
    assert begun(jobs) == [("two", 1, [0])], "one that is not complete takes nobody's turn"
    jobs.join(client(1, 2, name="slow"))
    assert leave(jobs, two) == [("two", 1)]
    assert begun(jobs) == [("slow", 2, [0, 1])], "it arrived before the third"
    assert jobs.served == 2


def test_of_a_job_that_is_stopped_nobody_is_awaited() -> None:
    members, queued = [client(0, job=7), client(1, job=7)], client(0)
    other = client(0, 1, name="other")
    jobs = joined(other)
    jobs.begin()
    jobs.readmit(members[0], others_until=100.0)
    jobs.heard_of(7)
    jobs.join(queued)
    assert jobs.stop("train") == (7, [members[0], queued])
    assert leave(jobs, members[0], queued) == [("train", 7)]
    assert jobs.num_running == 1, "the other one"
    with pytest.raises(ConfigError, match=r"there is no job 'train'; .*: 'other'"):
        jobs.stop("train")
    jobs.join(queued)
    assert jobs.stop("train") == (None, [queued])
    leave(jobs, queued)
    jobs.join(client(0, 1))
    assert begun(jobs) == [("train", 8, [0])], "its name may be used again"


def test_a_number_has_one_name() -> None:
    member = client(0, 1)
    jobs = joined(member)
    jobs.begin()
    with pytest.raises(ConfigError, match=r"job 0 has the name 'train', .* says 'other'"):
        jobs.readmit(client(0, 1, job=0, name="other"), others_until=100.0)
    assert leave(jobs, member) == [("train", 0)]


_NAMES = ("a", "b", "c")
_STEP = st.tuples(
    st.sampled_from(_NAMES), st.sampled_from(("join", "kill", "lapse", "leave")), st.integers(0, 1)
)


class _Trace:
    """Jobs of two ranks each, and what happens to them, by name and without numbers."""

    def __init__(self, max_jobs: int) -> None:
        self.jobs = Jobs(max_jobs)
        self.members: dict[tuple[str, int], list[Member]] = defaultdict(list)
        """All that are here, the latest last."""
        self.happened: list[tuple[str, Any]] = []

    def step(self, name: str, what: str, rank: int) -> None:
        here = self.members[name, rank]
        if what == "join":
            member = client(rank, name=name)
            try:
                self.jobs.join(member)
                here.append(member)
            except ConfigError:
                self.happened.append((name, "refused"))
        elif here and what == "kill":
            here[-1].gone_at = 1.0
        elif here:  # with a goodbye or after its grace
            member = here.pop(0)
            member.gone_at = 1.0 if what == "lapse" else None
            self.jobs.leave(member)
        for ended in self.jobs.end_those_over():
            self.happened.append((ended.name, "over"))
            for refused, _ in ended.refused:
                self.members[ended.name, refused.join.rank].remove(refused)
        for book in self.jobs.begin():
            self.happened.append((book.name, "begins"))
            self.check(book)

    def check(self, book: JobBook) -> None:
        ranks = book.present.values()
        assert {(one.join.job_name, one.job) for one in ranks} == {(book.name, book.job)}
        assert sorted(book.present) == [0, 1]
        assert all(one.gone_at is None for one in ranks)


@given(st.lists(_STEP, max_size=60))
def test_jobs_of_other_names_change_nothing_for_a_job(steps: list[tuple[str, str, int]]) -> None:
    """Each name alone sees the same as beside the others."""
    together = _Trace(max_jobs=16)
    for step in steps:
        together.step(*step)
    for name in _NAMES:
        alone = _Trace(max_jobs=16)
        for step in steps:
            if step[0] == name:
                alone.step(*step)
        assert alone.happened == [event for event in together.happened if event[0] == name]


@given(st.lists(_STEP, max_size=60), st.integers(1, 2))
def test_no_more_jobs_run_than_may_and_none_waits_where_there_is_room(
    steps: list[tuple[str, str, int]], max_jobs: int
) -> None:
    trace, numbers = _Trace(max_jobs), []
    for step in steps:
        trace.step(*step)
        books = trace.jobs._books.values()
        running = [book for book in books if book.running]
        numbers += [book.job for book in running if book.job not in numbers]
        assert len(running) <= max_jobs
        assert len(running) == max_jobs or not any(
            book.complete and not book.running for book in books
        )
        assert not any(book.is_empty for book in books), "a server would keep each name for ever"
    assert numbers == list(range(len(numbers))), "each has a number of its own"


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
    members = [client(0), client(1)]
    jobs = joined(*members)
    jobs.heard_of(3)  # another server had clients of it
    assert begun(jobs) == [("train", 4, [0, 1])]
    other = client(0, job=3, name="other")
    jobs.readmit(other, others_until=100.0)  # it lives, and only now came back
    assert jobs.num_running == 2
    assert leave(jobs, other, now=100.0) == [("other", 3)]
    with pytest.raises(PeerError, match=r"job 2 .* was away while .* started again, as number 4"):
        jobs.readmit(client(0, job=2), others_until=100.0)
    assert leave(jobs, *members) == [("train", 4)]
    with pytest.raises(PeerError, match=r"job 4 .* is over"):
        jobs.readmit(client(0, job=4), others_until=100.0)
    jobs.heard_of(7)
    jobs.join(client(0, 1))
    assert begun(jobs) == [("train", 8, [0])]


def test_a_job_that_comes_back_while_its_next_start_gathers_is_served_first() -> None:
    """Server 0 was restarted; clients of the next start were there before those that run."""
    early, back = client(0), [client(rank, job=4) for rank in range(2)]
    jobs = joined(early)
    for member in back:
        jobs.readmit(member, others_until=100.0)
    jobs.join(client(1))
    assert begun(jobs) == []
    jobs.heard_of(4)
    assert leave(jobs, *back) == [("train", 4)]
    assert begun(jobs) == [("train", 5, [0, 1])]
