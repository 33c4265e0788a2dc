"""The origin of log lines (job, rank, storage server), if many processes write to one place."""

import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LOG_FORMAT = "%(asctime)s %(levelname)s [%(where)s] %(name)s: %(message)s"
"""A format that shows what `WhereFilter` adds."""

# one dict, few writes: each is atomic, and a concurrent log line may show either value
_process: dict[str, object] = {}
# by thread, not in _process: a server responds to several compute processes at a time
_asking: ContextVar[dict[str, object]] = ContextVar("asking")


class WhereFilter(logging.Filter):
    """Gives each record ``where``: ``"server=0 job=2 rank=3 host=gpu7"``, as far as known.

    A compute process knows its job and rank. A storage server knows its number and, during a
    response to a compute process, that one's job and rank.

    ::

        handler = logging.StreamHandler()
        handler.addFilter(WhereFilter())
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
        logging.getLogger("gigl_loader").addHandler(handler)
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add ``where``; let every record pass."""
        # the requesting process takes precedence over this process's own values
        known = {**_process, **_asking.get({})}
        if not known and "RANK" in os.environ:  # a rank without a graph store
            known["rank"] = os.environ["RANK"]
        known["host"] = platform.node()
        record.where = " ".join(f"{name}={value}" for name, value in known.items())
        return True


@contextmanager
def showing_where() -> Iterator[None]:
    """Let all handlers show the origin of lines inside the block; without handlers, on stderr."""
    root = logging.getLogger()
    # handlers, not loggers, have the filter: a logger's filter does not see its children's records
    level, where, added = root.level, WhereFilter(), []
    if not root.handlers:
        added.append(logging.StreamHandler())
        added[0].setFormatter(logging.Formatter(LOG_FORMAT))
        root.addHandler(added[0])
        root.setLevel(logging.INFO)
    # the current ones: handlers may be added or removed before the block ends
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
    """Set values for this process; None removes one."""
    for name, value in values.items():
        if value is None:
            _process.pop(name, None)
        else:
            _process[name] = value


@contextmanager
def answering(**values: object) -> Iterator[None]:
    """Set the client of this thread's work inside the block."""
    token = _asking.set(values)
    try:
        yield
    finally:
        _asking.reset(token)
