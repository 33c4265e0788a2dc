"""Rows that a sampler asks for and somebody reads later: for batches that are drawn ahead.

The sampler does not notice: `gigl_loader.sampler.reader.GraphReader` hands out `LaterRows` where
its ``peers`` are `LaterPeers`, and `gigl_loader.rowcache.pipeline` reads them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gigl_loader.memory.segments import Array
from gigl_loader.sampler.questions import (
    Drawn,
    DrawRequest,
    Peers,
    PendingAnswer,
    RowsAnswer,
    RowsRequest,
)


class LaterPeers:
    """``peers`` for a sampler whose rows are read later.

    Args:
        peers: Who answers questions; None: nobody has to be asked.
    """

    def __init__(self, peers: Peers | None) -> None:
        # None is allowed although a sampler without peers asks nobody: that it draws ahead shows by
        # the class of its peers alone.
        self._to_ask = peers

    @property
    def _peers(self) -> Peers:
        assert self._to_ask is not None, "what is not on this machine has peers to ask"
        return self._to_ask

    def draw(self, partition: int, request: DrawRequest) -> PendingAnswer[Drawn]:
        """Ask a worker of ``partition`` for neighbours."""
        return self._peers.draw(partition, request)

    def rows(self, partition: int, request: RowsRequest, out: Array) -> PendingAnswer[RowsAnswer]:
        """Ask a worker of ``partition`` for rows."""
        return self._peers.rows(partition, request, out)


@dataclass(frozen=True, eq=False)
class LaterRows:
    """Rows that a field is to have; stands where its ``write`` does."""

    kind: str
    name: Any
    ids: Array
    """``[n]`` int64, global ids; a copy, that nobody writes to."""
    split: dict[int, Array] | None
    """Positions by owner, as `GraphReader.split` returns them."""
    read: Callable[[Array], None]
    """Reads them now, for a sampler that draws by what they say, such as times."""

    def __call__(self, out: Array) -> None:
        """Write the rows to ``out``."""
        self.read(out)
