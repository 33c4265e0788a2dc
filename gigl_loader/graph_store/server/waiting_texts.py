"""What clients that wait for their job are told."""

from collections.abc import Sequence

from gigl_loader.graph_store.server.job_book import JobBook

_MOST_NAMES = 5
"""Most names of other jobs in the message for a client that waits."""


def texts_for_waiting(
    books: Sequence[JobBook], ready: Sequence[JobBook], missing: Sequence[int], max_jobs: int
) -> dict[str, str]:
    """Return by job name why its clients wait.

    Args:
        books: All jobs.
        ready: Those that wait for room alone, in the order in which they will begin.
        missing: Ranks of storage servers that are not here.
        max_jobs: Most jobs that are served at a time.
    """
    gathering = [book.name for book in books if not book.running]
    num_running = len(books) - len(gathering)
    texts = {}
    for book in books:
        if book.running:
            texts[book.name] = (
                f"an earlier job {book.name!r} is still served; {len(book.present)} of its clients "
                "are here. A job of another name need not wait for it"
            )
            continue
        text = (
            f"{len(book.present)} of {book.world_size} compute processes of job {book.name!r} are "
            "here"
        )
        if missing:
            text += f"; storage servers {[*missing]} have not loaded their partitions yet"
        elif book not in ready and (others := [n for n in gathering if n != book.name]):
            # ranks that were given different names wait for each other without end
            text += f"; other jobs wait, too: {', '.join(map(repr, others[:_MOST_NAMES]))}"
        elif book in ready and num_running >= max_jobs:
            text += (
                f"; {num_running} jobs are served, the most at a time (--max-jobs), and "
                f"{ready.index(book)} wait before it"
            )
        texts[book.name] = text
    return texts
