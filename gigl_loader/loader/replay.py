"""One batch of an epoch again, without the batches before it."""

from typing import TYPE_CHECKING

from gigl_loader.errors import ConfigError, PeerError, UsageError, WrongTypeError
from gigl_loader.loader.base import BaseDistLoader

if TYPE_CHECKING:
    from torch_geometric.data import Data, HeteroData


def replay(loader: BaseDistLoader, epoch: int, batch: int) -> "Data | HeteroData":
    """Return batch ``batch`` of epoch ``epoch`` again, bit for bit, sampled now and alone.

    It may be of any epoch, past or to come, of this run or of one before: what counts is that the
    loader is built as that one was, with the same ``seed``. Where the loader is, and its
    `BaseDistLoader.stats`, stay as they are.

    Args:
        loader: Any loader of this package, in any deployment, with no epoch under way. Ranks that
            sample together (``exchange="collective"``) have to call it together, with one epoch.
        epoch: Number of the epoch.
        batch: Position of the batch in the epoch: the first batch that this rank is given is 0.
            With ``shard="world"`` it counts over the whole job, and any rank has every batch.

    Raises:
        ConfigError: There is no such epoch or batch.
        UsageError: An epoch is under way, or the loader was shut down.
        PeerError: A worker or server failed.
    """
    if not isinstance(loader, BaseDistLoader):
        raise WrongTypeError(f"replay takes a loader of gigl_loader, got {type(loader).__name__}")
    loader._check_usable()
    _check_number("epoch", epoch, None)
    _check_number("batch", batch, int(loader._num_expected))
    # One stream has one epoch: starting this one would end the other's.
    if loader._is_under_way():
        raise UsageError(
            "replay cannot go beside an epoch that is under way: end its loop first; to go on with "
            "that epoch later, keep loader.state_dict() and give it to load_state_dict()"
        )
    source = loader._source
    try:
        # By the source and not by `iter`: the loader's progress and counts know nothing of it.
        source.start_epoch(epoch, [batch])
        received = source.next()
        if received is None:
            raise PeerError(f"batch {batch} of epoch {epoch} did not come: the epoch was empty")
        source.next()  # past the end, so that the source is at rest as after any epoch
    except BaseException:
        source.cancel_epoch()
        raise
    message = received.whole()
    if loader._engine is not None:  # then the copies of an epoch go ahead of its batches
        message = loader._copied(message)
    return loader._collate_fn(message)


def _check_number(name: str, value: int, stop: int | None) -> None:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not is_int or value < 0 or (stop is not None and value >= stop):
        limit = ">= 0" if stop is None else f"in [0, {stop}), as many batches as an epoch has"
        raise ConfigError(f"{name} must be an integer {limit}, got {value!r}")
