"""Which job is served, where ranks are killed and started again."""

from gigl_loader.remote.jobs import JobBook, Member
from gigl_loader.remote.membership import Join, Role


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
    book.readmit(back)
    assert book.running
    assert book.unseen == {1, 2}
    assert not book.leave(back), "the others may only be slow to notice"
    book.join(client(0))
    assert not book.end_if_over()
    book.join(client(1))
    assert book.end_if_over()
    assert (book.job, book.running) == (5, False)
    assert joined(book, *book.take_queued()).complete
