"""The batches of each consumer of a producer, without lists as long as an epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gigl_loader.graph_store.wire.requests import ProducerRequest


def share_of_batches(total: int, request: ProducerRequest, consumer: int) -> range:
    """Return the batches that this server samples for one consumer, of ``total`` in an epoch."""
    if request.shard is None:
        return range(0)
    # a slice of a range is a range, which takes no memory for an epoch's batches
    return range(request.shard, total, request.num_shards)[consumer :: request.num_consumers]


@dataclass(frozen=True)
class OwnBatches(Sequence[tuple[int, int]]):
    """One consumer's batches on all servers: ``(number of the server's shard, batch)``, ascending.

    The counts of `share_of_batches` for each server, without a list as long as the epoch.
    """

    total: int
    """Number of batches in an epoch."""
    num_shards: int
    num_consumers: int = 1
    consumer: int = 0

    def __len__(self) -> int:
        # in each round a consumer gets one batch of each shard; of the rest, the first `num_shards`
        # batches are consumer 0's, the next ones consumer 1's
        rounds, rest = divmod(self.total, self.num_shards * self.num_consumers)
        last = min(max(rest - self.consumer * self.num_shards, 0), self.num_shards)
        return rounds * self.num_shards + last

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        turn, shard = divmod(index, self.num_shards)
        return shard, (turn * self.num_consumers + self.consumer) * self.num_shards + shard
