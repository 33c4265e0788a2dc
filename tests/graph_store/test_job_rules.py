"""The rules of jobs beside a simple reference, for any order of what may happen to clients."""

import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gigl_loader.errors import ConfigError, JoinRefusedError
from gigl_loader.graph_store.server.job_numbers import JobNumbers
from gigl_loader.graph_store.server.job_rules import JobRules
from gigl_loader.graph_store.server.member import Member
from gigl_loader.graph_store.wire.membership import Join, Role
from gigl_loader.runtime.transport import EndReason

NAMES = ("a", "b", "c")
UNSEEN_S = 10.0
SESSIONS = itertools.count()


def client(name: str, rank: int, size: int, **more: Any) -> Member:
    join = Join(role=Role.CLIENT, rank=rank, num_servers=1, world_size=size, job_name=name, **more)
    session = f"session {next(SESSIONS)}"
    return Member(session, join, f"rank {rank}", job=join.job, secret=join.secret)


def is_here(member: Member) -> bool:
    return member.give_up_at is None


@dataclass(eq=False)
class Name:
    """What the reference knows of a name: lists of clients, as they came."""

    place: int = 0
    number: int | None = None
    group: list[Member] = field(default_factory=list)
    """Clients of the job that runs, or gathers."""
    queue: list[Member] = field(default_factory=list)
    awaited: set[int] = field(default_factory=set)
    until: float = 0.0
    given_up: bool = False


class Reference:
    """The rules once more, by lists and without thrift: each answer looks at all clients."""

    def __init__(self, max_jobs: int) -> None:
        self.max_jobs = max_jobs
        self.names: dict[str, Name] = {}
        self.latest, self.served, self.places = -1, 0, itertools.count()
        self.over: set[int] = set()
        self.given_up: dict[str, int] = {}
        self.replaced: list[Member] = []
        """Clients that were lost while they gathered, and whose rank another one took."""

    def join(self, member: Member) -> bool:
        name = self.names.setdefault(member.join.job_name, Name(next(self.places)))
        if name.number is not None:
            name.queue.append(member)
            return True
        return self._gather(name, member)

    def _gather(self, name: Name, member: Member) -> bool:
        def hinders(other: Member) -> bool:
            same = other.join.rank == member.join.rank
            return same or other.join.world_size != member.join.world_size

        if any(hinders(other) and is_here(other) for other in name.group):
            return False
        self.replaced += [other for other in name.group if hinders(other)]
        name.group = [*(other for other in name.group if not hinders(other)), member]
        return True

    def readmit(self, member: Member, until: float) -> bool:
        join = member.join
        assert join.job is not None
        name = self.names.get(join.job_name, Name())
        if name.number != join.job:
            early = self.given_up.get(join.job_name) == join.job and not name.group
            if name.number is not None or (join.job in self.over and not early):
                return False
            if early:
                del self.given_up[join.job_name]
                self.over.remove(join.job)
            self.served = self.served - 1 if early else max(self.served, join.jobs_served)
            name.queue, name.group, name.number = [*name.queue, *name.group], [], join.job
            name.awaited, name.given_up = set(range(join.world_size)), False
        name.group = [one for one in name.group if one.join.rank != join.rank] + [member]
        name.awaited -= {join.rank}
        name.until = until
        self.names[join.job_name] = name
        self.latest = max(self.latest, join.job)
        return True

    def leave(self, member: Member) -> None:
        name = self.names.get(member.join.job_name, Name())
        if member in name.group:
            name.given_up = not is_here(member)
        name.group = [one for one in name.group if one is not member]
        name.queue = [one for one in name.queue if one is not member]

    def stop(self, of: str) -> list[Member]:
        name = self.names[of]
        clients = [*name.group, *name.queue]
        name.awaited, name.queue = set(), []
        if name.number is None:
            name.group = []
        return clients

    def settle(self, now: float) -> tuple[list[Any], list[Any]]:
        ended: list[Any] = []
        begun: list[Any] = []
        for of, name in list(self.names.items()):
            next_here = [one.join for one in name.queue if is_here(one)]
            is_next = {one.rank for one in next_here} >= set(
                range(next_here[-1].world_size if next_here else 1)
            )
            if name.number is None or name.group:
                continue
            if name.awaited and now < name.until and not is_next:
                continue
            self.over.add(name.number)
            if name.given_up:
                self.given_up[of] = name.number
            self.served += 1
            fresh = Name(next(self.places))
            self.names[of] = fresh
            refused = [one for one in name.queue if not self._gather(fresh, one)]
            ended.append((of, name.number, refused))
        for of in [one for one, name in self.names.items() if self.is_empty(name)]:
            del self.names[of]
        for of, name in sorted(self.names.items(), key=lambda item: item[1].place):
            running = sum(one.number is not None for one in self.names.values())
            if name.number is None and self.is_whole(name.group) and running < self.max_jobs:
                self.latest += 1
                name.number, name.given_up = self.latest, False
                self.given_up.pop(of, None)
                begun.append((of, self.latest, sorted(one.join.rank for one in name.group)))
        return ended, begun

    @staticmethod
    def is_empty(name: Name) -> bool:
        return name.number is None and not name.group and not name.queue

    @staticmethod
    def is_whole(group: list[Member]) -> bool:
        size = group[0].join.world_size if group else -1
        return {one.join.rank for one in group} == set(range(size)) and all(map(is_here, group))


class JobMachine(RuleBasedStateMachine):
    """Clients of three names come, go, are lost, given up and come back; servers start again."""

    @initialize(max_jobs=st.integers(1, 3))
    def start(self, max_jobs: int) -> None:
        self.max_jobs, self.now = max_jobs, 0.0
        self.numbers = JobNumbers()
        self.jobs, self.reference = JobRules(self.numbers, max_jobs), Reference(max_jobs)
        self.waiting: list[Member] = []
        """Clients that were let in and have no job yet."""
        self.running: list[Member] = []
        """Clients of jobs that run."""
        self.outside: list[Member] = []
        """Clients of jobs that may come back, as they left."""
        self.used: list[int] = []
        """All numbers of jobs, as they began."""

    # -- what happens -----------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), rank=st.integers(0, 2), size=st.sampled_from((1, 2, 2, 3)))
    def join(self, name: str, rank: int, size: int) -> None:
        self.let_in(client(name, rank % size, size))

    @rule(name=st.sampled_from(NAMES), size=st.sampled_from((1, 2, 3)))
    def join_all(self, name: str, size: int) -> None:
        """A whole job comes, as most do: else few of the others' orders would have one."""
        for rank in range(size):
            self.let_in(client(name, rank, size))

    def let_in(self, member: Member) -> None:
        try:
            self.jobs.join(member)
            is_in = True
        except ConfigError:
            is_in = False
        assert is_in == self.reference.join(member)
        if is_in:
            self.waiting.append(member)
        self.settle()

    @precondition(lambda self: self.waiting or self.running)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        """A connection is cut: the client may come back for a while."""
        member = data.draw(st.sampled_from([*self.waiting, *self.running]))
        member.give_up_at = self.now + 1.0
        self.settle()

    @precondition(lambda self: bool(self.lost))
    @rule(data=st.data(), back=st.booleans())
    def end_a_loss(self, data: st.DataObject, back: bool) -> None:
        """It comes back on the same session, or is given up."""
        member = data.draw(st.sampled_from(self.lost))
        if back:
            member.give_up_at = None
        else:
            self.remove(member)
            if member.job is not None:
                self.outside.append(member)
        self.settle()

    @precondition(lambda self: self.waiting or self.running)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from([*self.waiting, *self.running]))
        member.give_up_at = None
        self.remove(member)
        self.settle()

    @precondition(lambda self: self.outside)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        """A client of a job comes on a new session: after a restart, or when it was given up."""
        self.readmit(data.draw(st.sampled_from(self.outside)))

    def readmit(self, former: Member) -> None:
        join, served = former.join, self.reference.served
        member = client(
            join.job_name,
            join.rank,
            join.world_size,
            job=former.job,
            jobs_served=served,
            secret=former.secret,
        )
        self.numbers.check(member.join)
        self.outside.remove(former)
        if self.reference.readmit(member, self.now + UNSEEN_S):
            self.jobs.readmit(member, self.now + UNSEEN_S)
            self.running.append(member)
        else:
            words = rf"job {former.job} \('{join.job_name}'\) of the storage cluster is over"
            with pytest.raises(JoinRefusedError, match=words) as caught:
                self.jobs.readmit(member, self.now + UNSEEN_S)
            assert caught.value.end == EndReason.JOB_OVER.value
        self.settle()

    @precondition(lambda self: any(one.job is not None for one in self.lost))
    @rule(data=st.data())
    def come_on_another_session(self, data: st.DataObject) -> None:
        """A client of a running job that was lost is back, before it was given up."""
        former = data.draw(st.sampled_from([one for one in self.lost if one.job is not None]))
        self.running.remove(former)
        self.outside.append(former)
        self.readmit(former)

    @precondition(lambda self: bool(self.running))
    @rule(data=st.data(), rank=st.integers(0, 3), more=st.integers(0, 2))
    def come_as_a_stranger(self, data: st.DataObject, rank: int, more: int) -> None:
        """A process that was not there at the start says that it is of a job that runs."""
        of = data.draw(st.sampled_from(self.running))
        size = of.join.world_size + more
        secret = b"" if more == 0 else of.secret
        stranger = client(of.join.job_name, rank % size, size, job=of.job, secret=secret)
        with pytest.raises(ConfigError, match=rf"job {of.job} \('{of.join.job_name}'\) began with"):
            self.numbers.check(stranger.join)

    @precondition(lambda self: self.reference.names)
    @rule(data=st.data())
    def stop(self, data: st.DataObject) -> None:
        """A job is stopped: all its clients are to be told, and then leave."""
        name = data.draw(st.sampled_from(sorted(self.reference.names)))
        number = self.reference.names[name].number
        told = self.jobs.stop(name)
        assert {*told} == {*self.reference.stop(name)}
        here = [*self.waiting, *self.running]
        assert {*told} == {one for one in here if one.join.job_name == name}, "all are told"
        assert number is None or self.numbers.stopped[-1] == number
        for member in told:
            self.remove(member)
        self.outside = [one for one in self.outside if one.job != number or number is None]
        self.settle()

    @rule(seconds=st.sampled_from((1.0, UNSEEN_S)))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.settle()

    @precondition(lambda self: bool(self.running))
    @rule()
    def start_the_server_again(self) -> None:
        """It knows nothing but the latest number, of other servers; clients of jobs may be back."""
        latest = self.numbers.latest
        self.outside += self.running
        self.waiting, self.running = [], []
        self.numbers = JobNumbers()
        self.numbers.mark_used(latest)
        self.jobs = JobRules(self.numbers, self.max_jobs)
        self.reference = Reference(self.max_jobs)
        self.reference.latest = latest

    # -- what follows -----------------------------------------------------------------------------

    @property
    def lost(self) -> list[Member]:
        return [one for one in [*self.waiting, *self.running] if not is_here(one)]

    def remove(self, member: Member) -> None:
        self.jobs.leave(member)
        self.reference.leave(member)
        self.waiting = [one for one in self.waiting if one is not member]
        self.running = [one for one in self.running if one is not member]

    def settle(self) -> None:
        found, (ended, begun) = self.jobs.settle(self.now), self.reference.settle(self.now)
        assert sorted((one.name, one.number) for one in found.ended) == sorted(
            (name, number) for name, number, _ in ended
        )
        assert [(one.name, one.number, sorted(one.ranks)) for one in found.begun] == begun
        refused = {member for one in found.ended for member, _ in one.refused}
        assert refused == {member for *_, members in ended for member in members}
        for member in refused | {*self.reference.replaced}:
            assert member.news.refused, "who cannot be of a job is told so"
        gone = refused | {*self.reference.replaced}
        self.waiting = [one for one in self.waiting if one not in gone]
        self.reference.replaced = []
        for job in found.begun:
            clients = [one for one in self.waiting if one.job == job.number]
            assert job.number not in self.used, "a number is given once"
            assert sorted(one.join.rank for one in clients) == [*range(len(clients))]
            assert {one.join.world_size for one in clients} == {len(clients)}, "all ranks, once"
            assert all(is_here(one) for one in clients)
            self.used.append(job.number)
        self.running += [one for one in self.waiting if one.job is not None]
        self.waiting = [one for one in self.waiting if one.job is None]

    @invariant()
    def all_is_as_in_the_reference(self) -> None:
        assert {*self.jobs.names} == {*self.reference.names}, "an empty name is forgotten"
        assert self.numbers.latest == self.reference.latest
        assert self.numbers.served == self.reference.served
        running = [one for one in self.reference.names.values() if one.number is not None]
        assert self.jobs.num_running == len(running)

    @invariant()
    def who_waits_is_counted_and_knows_why(self) -> None:
        assert self.jobs.num_waiting == len(self.waiting), "nobody is forgotten"
        assert {one.join.job_name for one in self.waiting} <= {*self.jobs.why_waiting([])}

    @invariant()
    def no_rank_is_there_twice(self) -> None:
        ranks = [(one.job, one.join.rank) for one in self.running]
        assert len(ranks) == len({*ranks})

    @invariant()
    def nobody_waits_although_all_are_there_and_there_is_room(self) -> None:
        if self.jobs.num_running >= self.max_jobs:
            return
        served = {name for name, one in self.reference.names.items() if one.number is not None}
        for name in {one.join.job_name for one in self.waiting} - served:
            waiting = [one for one in self.waiting if one.join.job_name == name]
            assert not Reference.is_whole(waiting)


def test_jobs_begin_wait_and_end_as_in_a_simple_reference() -> None:
    more = settings(settings.get_profile("all"), stateful_step_count=80)
    run_state_machine_as_test(JobMachine, settings=more)


def test_the_next_job_is_here_when_each_of_its_ranks_is() -> None:
    """Ranks were counted, so one of another number of processes ended the job before it."""
    jobs = JobRules(JobNumbers(), max_jobs=1)
    back = client("a", 0, 2, job=0)
    jobs.readmit(back, UNSEEN_S)
    jobs.leave(back)
    for rank, size in ((2, 3), (0, 2)):
        jobs.join(client("a", rank, size))
    assert not jobs.settle(0.0).ended, "rank 1 of the next job is not here"
    jobs.join(client("a", 1, 2))
    assert [ended.number for ended in jobs.settle(0.0).ended] == [0]


_STEP = st.tuples(
    st.sampled_from(NAMES), st.sampled_from(("join", "kill", "lapse", "leave")), st.integers(0, 1)
)


class _Trace:
    """Jobs of two ranks each, and what happens to them, by name and without numbers."""

    def __init__(self) -> None:
        self.rules = JobRules(JobNumbers(), max_jobs=16)
        self.members: dict[tuple[str, int], list[Member]] = defaultdict(list)
        """All that are here, the latest last."""
        self.happened: list[tuple[str, str]] = []

    def step(self, name: str, what: str, rank: int) -> None:
        here = self.members[name, rank]
        if what == "join":
            member = client(name, rank, 2)
            try:
                self.rules.join(member)
                here.append(member)
            except ConfigError:
                self.happened.append((name, "refused"))
        elif here and what == "kill":
            here[-1].give_up_at = 1.0
        elif here:  # with a goodbye or after its grace
            member = here.pop(0)
            member.give_up_at = 1.0 if what == "lapse" else None
            self.rules.leave(member)
        found = self.rules.settle()
        for ended in found.ended:
            self.happened.append((ended.name, "over"))
            for refused, _ in ended.refused:
                self.members[ended.name, refused.join.rank].remove(refused)
        self.happened += [(begun.name, "begins") for begun in found.begun]


@given(st.lists(_STEP, max_size=60))
def test_jobs_of_other_names_change_nothing_for_a_job(steps: list[tuple[str, str, int]]) -> None:
    """Each name alone sees the same as beside the others."""
    together = _Trace()
    for step in steps:
        together.step(*step)
    for name in NAMES:
        alone = _Trace()
        for step in steps:
            if step[0] == name:
                alone.step(*step)
        assert alone.happened == [event for event in together.happened if event[0] == name]
