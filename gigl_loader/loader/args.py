"""What the user gave a loader, checked as a whole: before anything is started."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch

from gigl_loader._glt import SamplingConfig
from gigl_loader.errors import ConfigError
from gigl_loader.loader.config import NumNeighbors, check_workers, flag, positive
from gigl_loader.loader.keywords import AllKeywords, completed
from gigl_loader.loader.world import check_shard
from gigl_loader.options import (
    CacheOptions,
    EpochOptions,
    ExpansionOptions,
    KHopNeighborSamplerOptions,
    PPRSamplerOptions,
    SamplerOptions,
    options_of_batches,
)
from gigl_loader.sizes import parse_size
from gigl_loader.workers.sampled_input import seed_or_drawn

_OF_EXPANSION = frozenset(ExpansionOptions.__dataclass_fields__)


@dataclass(frozen=True, kw_only=True)
class LoaderArgs:
    """The arguments that all loaders share; what each means is in `gigl_loader.loader.keywords`."""

    num_neighbors: NumNeighbors
    given: AllKeywords
    """All of them by name; those that the user left out have their defaults."""
    expansion: ExpansionOptions
    """How batches grow, made of those that are about it."""

    @classmethod
    def of(cls, num_neighbors: NumNeighbors, **keywords: Unpack[AllKeywords]) -> "LoaderArgs":
        """Return the arguments of a loader, checked.

        Args:
            num_neighbors: Neighbours per hop.
            **keywords: What the user gave.

        Raises:
            ConfigError: A value cannot work in either deployment.
        """
        # Without types from here on: mypy knows a TypedDict by literal keys only.
        given = completed(keywords)
        by_name: dict[str, Any] = {**given}
        expansion = ExpansionOptions(**{name: by_name[name] for name in _OF_EXPANSION})
        if isinstance(given["sampler_options"], PPRSamplerOptions):
            # The push decides how far it goes, so no fanout was given. A list of one hop passes the
            # checks of fanouts, and becomes the edge types that may be walked.
            num_neighbors = [1]  # only its edge types count
        args = cls(num_neighbors=num_neighbors, given=given, expansion=expansion)
        args._check()
        return args

    def _check(self) -> None:
        given = self.given
        positive("batch_size", given["batch_size"])
        flag("shuffle", given["shuffle"])
        flag("drop_last", given["drop_last"])
        flag("with_weight", given["with_weight"])
        if given["exchange"] not in ("workers", "collective"):
            raise ConfigError(
                f'exchange must be "workers" or "collective", got {given["exchange"]!r}'
            )
        # Checked here as a whole and not in each room, so that a bad value costs nothing: no
        # process group is asked, no worker was started, and no other rank waits for this one.
        if self.in_process:
            self._check_no_workers()
        else:
            check_workers(given["num_workers"], given["worker_concurrency"])
        if self.with_weight and self.expansion.time_attr is not None:
            raise ConfigError("with_weight and time_attr cannot be combined: leave one of them out")
        positive("device_prefetch", given["device_prefetch"])
        check_shard(given["shard"], in_order=given["in_order"])
        if given["shard"] == "world" and given["context"] is not None:
            raise ConfigError(
                'shard="world" needs the process group in every epoch, and context= ends its own: '
                "call torch.distributed.init_process_group() and leave context out"
            )
        # Only for its error: GLT's options keep sizes as they were given.
        parse_size(given["channel_size"], "channel_size")
        # `cache` itself raises where `remote_cache` or `lookahead` cannot be read.
        if self.cache is not None and self.in_process:
            raise ConfigError(
                f"remote_cache={given['remote_cache']!r} is filled by sampling workers, and this "
                "process samples itself: leave it out, or give the loader workers"
            )
        if given["pin_memory_device"] is not None:
            check_device(given["pin_memory_device"])
        for name in ("prefetch_size", "num_cpu_threads"):
            if given[name] is not None:
                positive(name, given[name])
        self._check_fanouts_agree()

    def _check_no_workers(self) -> None:
        """Raise `ConfigError` where a keyword is for workers, and there are none."""
        given = self.given
        # 1 is the default: it cannot be told from a number that was left out.
        if given["num_workers"] not in (0, 1):
            raise ConfigError(
                'exchange="collective" samples in this process: num_workers='
                f"{given['num_workers']} processes have nothing to do; leave it out"
            )
        check_workers(1, given["worker_concurrency"])
        if given["worker_init_fn"] is not None:
            raise ConfigError(
                "worker_init_fn is for sampling processes, and this loader starts none"
            )

    def _check_fanouts_agree(self) -> None:
        options = self.given["sampler_options"]
        if (
            isinstance(options, KHopNeighborSamplerOptions)
            and options.num_neighbors != self.num_neighbors
        ):
            raise ConfigError(
                f"num_neighbors={self.num_neighbors} and sampler_options.num_neighbors="
                f"{options.num_neighbors} differ: give one value to both"
            )

    @property
    def with_weight(self) -> bool:
        """Whether neighbours are drawn by weight; naming the weights says so too."""
        return self.given["with_weight"] or self.given["weight_attr"] is not None

    @property
    def in_process(self) -> bool:
        """Whether the training process samples."""
        num_workers = self.given["num_workers"]
        # `False == 0`, and who says False means something else: `check_workers` refuses it.
        no_workers = num_workers == 0 and not isinstance(num_workers, bool)
        return no_workers or self.given["exchange"] == "collective"

    @property
    def cache(self) -> CacheOptions | None:
        """Options of the cache for rows of other machines; None: no cache."""
        return CacheOptions.of(self.given["remote_cache"], self.given["lookahead"])

    def with_sampler(self, options: SamplerOptions | None) -> "LoaderArgs":
        """Return these arguments with another sampler."""
        return replace(self, given={**self.given, "sampler_options": options})

    def epoch_options(self) -> EpochOptions:
        """Return seed, order and deadline; a missing seed is drawn now."""
        given = self.given
        return EpochOptions(
            seed=seed_or_drawn(given["seed"]),
            replace=given["replace"],
            in_order=given["in_order"],
            timeout_s=given["timeout"],
            feature_store=given["feature_store"],
            weight_attr=given["weight_attr"],
            expansion=self.expansion,
            max_restarts=given["max_restarts"],
            reconnect_timeout_s=given["reconnect_timeout"],
        )

    def same_on_all_ranks(self, config: SamplingConfig, options: EpochOptions) -> dict[str, str]:
        """Return what the ranks of a job have to agree on, as texts by name, from what was given.

        Args:
            config: Made of these arguments and the schema.
            options: From `epoch_options`.
        """
        given = self.given
        of_batches = options_of_batches(config, given["sampler_options"], options)
        # As the user gave them: what was made of them may depend on what a partition holds.
        fanouts = self.num_neighbors
        if isinstance(fanouts, Mapping):
            fanouts = {edge_type: list(fanouts[edge_type]) for edge_type in sorted(fanouts)}
        elif isinstance(fanouts, list | tuple):
            fanouts = list(fanouts)
        return {
            **of_batches,
            "shard": given["shard"],
            "num_neighbors": repr(fanouts),
            "with_edge": repr(given["with_edge"]),
            # These decide which exchanges ranks take part in.
            "even_ranks": repr(given["even_ranks"]),
            "exchange": given["exchange"],
        }

    def device(self, local_rank: int) -> torch.device:
        """Return where batches go."""
        if self.given["pin_memory_device"] is not None:
            return torch.device(self.given["pin_memory_device"])
        if torch.cuda.is_available():
            # Ranks beyond the number of devices share them: tests and small machines run like that.
            return torch.device("cuda", local_rank % torch.cuda.device_count())
        return torch.device("cpu")


def check_device(device: Any) -> None:
    """Raise `ConfigError` where torch has no such device."""
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"pin_memory_device={device!r} is no torch device: {error}") from None
    # `torch.device` takes any index; without this the first copy of the first epoch would fail.
    found = torch.cuda.device_count()
    if wanted.type == "cuda" and (wanted.index or 0) >= found:
        raise ConfigError(
            f"pin_memory_device={device!r}, but torch finds {found} CUDA devices here: leave it "
            "out for this process's device, or give 'cpu'"
        )
