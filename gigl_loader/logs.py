"""Whose log line it is: job, rank and storage server, where many processes write to one place."""

import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LOG_FORMAT = "%(asctime)s %(levelname)s [%(where)s] %(name)s: %(message)s"
"""A format that shows what `WhereFilter` adds."""

# one dict, few writes: each is atomic, and a line that is logged meanwhile may show either value
_process: dict[str, object] = {}
# by thread, and not in _process: a server answers several compute processes at a time
_asking: ContextVar[dict[str, object]] = ContextVar("asking")


class WhereFilter(logging.Filter):
    """Gives each record ``where``: ``"server=0 job=2 rank=3 host=gpu7"``, as far as it is known.

    A compute process knows its job and rank. A storage server knows its number and, while it
    answers a compute process, that one's job and rank.

    ::

        handler = logging.StreamHandler()
        handler.addFilter(WhereFilter())
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
        logging.getLogger("gigl_loader").addHandler(handler)
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add ``where``; let every record through."""
        # whoever is answered goes before what this process itself is: it is his line
        known = {**_process, **_asking.get({})}
        if not known and "RANK" in os.environ:  # a rank without a graph store
            known["rank"] = os.environ["RANK"]
        known["host"] = platform.node()
        record.where = " ".join(f"{name}={value}" for name, value in known.items())
        return True


@contextmanager
def showing_where() -> Iterator[None]:
    """Let all handlers show whose line it is inside the block; where there are none, on stderr."""
    root = logging.getLogger()
    # handlers, not loggers, have the filter: a logger's filter does not see its children's records
    level, where, added = root.level, WhereFilter(), []
    if not root.handlers:
        added.append(logging.StreamHandler())
        added[0].setFormatter(logging.Formatter(LOG_FORMAT))
        root.addHandler(added[0])
        root.setLevel(logging.INFO)
    # those of now: others may add some, and remove ours, before the block ends
    shown = list(root.handlers)
    for handler in shown:
        handler.addFilter(where)
    try:
        yield
    finally:
        for handler in shown:
            handler.removeFilter(where)
        for handler in added:
            root.removeHandler(handler)
        root.setLevel(level)


def know(**values: object) -> None:
    """Say what holds for this process from now on; None: it holds no more."""
    for name, value in values.items():
        if value is None:
            _process.pop(name, None)
        else:
            _process[name] = value


@contextmanager
def answering(**values: object) -> Iterator[None]:
    """Say for whom this thread works inside the block."""
    token = _asking.set(values)
    try:
        yield
    finally:
        _asking.reset(token)
