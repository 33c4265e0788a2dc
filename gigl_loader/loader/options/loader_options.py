"""The keywords of a loader, checked as a whole: before anything is started.

A new keyword is a field of `LoaderOptions` and, for type checkers (PEP 692), one of
`LoaderKeywords`. Those of `ExpansionOptions` are declared there.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Unpack

import torch

from gigl_loader.batch.device.copy_stream import full_device
from gigl_loader.dataset.cache_options import CacheOptions
from gigl_loader.dataset.schema import PPR, DatasetSchema, NodeType, is_label_edge_type
from gigl_loader.errors import ConfigError
from gigl_loader.loader.deployment.job_ranks import DistributedContext
from gigl_loader.loader.options.glt_config import (
    PPR_IS_UNWEIGHTED,
    Device,
    NumNeighbors,
    check_pad,
    create_sampling_config,
)
from gigl_loader.loader.seeds.seed_groups import GroupSource, SeedGroups
from gigl_loader.loader.seeds.seed_input import TimeInput, is_by_seed
from gigl_loader.loader.seeds.world import check_shard
from gigl_loader.runtime.glt_classes import SamplingConfig
from gigl_loader.runtime.plain_values import check_count, check_flag
from gigl_loader.runtime.sizes import parse_size
from gigl_loader.sampler.options import (
    DEFAULT_GROUPS_PER_BATCH,
    DEFAULT_MAX_RESTARTS,
    DEFAULT_RECONNECT_S,
    DEFAULT_TIMEOUT_S,
    GROUPS,
    CustomSamplerOptions,
    EvenRanks,
    Exchange,
    ExpansionKeywords,
    ExpansionOptions,
    FeatureStoreOptions,
    KHopNeighborSamplerOptions,
    PPRSamplerOptions,
    SamplerOptions,
    Shard,
    Shuffle,
    SourceOptions,
    options_of_batches,
)
from gigl_loader.sampler.sampler_kinds import SamplerKind
from gigl_loader.sources.sampled_input import (
    check_adaptive,
    check_draw,
    chosen_sampler,
    seed_or_drawn,
)
from gigl_loader.sources.sampling_checks import check_workers

LEAST_PREFETCH = 4
"""Batches that are requested ahead from each storage server, where workers have fewer each."""


class LoaderKeywords(ExpansionKeywords, total=False):
    """Names and types that all loaders take by keyword only; see `LoaderOptions` for the rest."""

    seed: int | None
    replace: bool
    in_order: bool
    timeout: float
    max_restarts: int
    reconnect_timeout: float
    worker_init_fn: Callable[[int], None] | None
    even_ranks: EvenRanks | None
    with_edge: bool | None
    device: Device | None
    device_prefetch: int
    exchange: Exchange
    shard: Shard
    feature_store: FeatureStoreOptions | None
    remote_cache: int | str | None
    weight_attr: str | None
    transform: Callable[[Any], Any] | None
    transform_sampler_output: Callable[[Any], Any] | None
    pad: bool | dict[str, Any]
    seed_groups: SeedGroups | None
    groups_per_batch: int
    time_window: float | TimeInput | None
    input_start_time: TimeInput | None
    input_end_time: TimeInput | None


class AllKeywords(LoaderKeywords, total=False):
    """All keywords of every loader, those that most take by position included."""

    num_workers: int
    batch_size: int
    context: DistributedContext | None
    local_process_rank: int | None
    local_process_world_size: int | None
    pin_memory_device: Device | None
    worker_concurrency: int
    channel_size: int | str
    prefetch_size: int | None
    process_start_gap_seconds: float | None
    num_cpu_threads: int | None
    shuffle: Shuffle
    drop_last: bool
    with_weight: bool
    sampler_options: SamplerOptions | None
    non_blocking_transfers: bool


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """The keywords of all loaders: type and default of each.

    Built once, by the constructor that the user called, and handed down unchanged. The docstrings
    of loaders say what each means. The first seventeen stand in each loader's signature, where they
    may be given by position. The others are keywords only, which `with_keywords` puts there.

    Raises:
        ConfigError: A value cannot work in either deployment, or two values not together.
    """

    num_neighbors: NumNeighbors
    num_workers: int = 1
    batch_size: int = 1
    context: DistributedContext | None = None
    local_process_rank: int | None = None
    local_process_world_size: int | None = None
    pin_memory_device: Device | None = None
    worker_concurrency: int = 4
    channel_size: int | str = "4GB"
    prefetch_size: int | None = None
    process_start_gap_seconds: float | None = None
    num_cpu_threads: int | None = None
    shuffle: Shuffle = False
    drop_last: bool = False
    with_weight: bool = False
    sampler_options: SamplerOptions | None = None
    non_blocking_transfers: bool = True
    seed: int | None = None
    replace: bool = False
    in_order: bool = True
    timeout: float = DEFAULT_TIMEOUT_S
    max_restarts: int = DEFAULT_MAX_RESTARTS
    reconnect_timeout: float = DEFAULT_RECONNECT_S
    worker_init_fn: Callable[[int], None] | None = None
    even_ranks: EvenRanks | None = None
    with_edge: bool | None = None
    device: Device | None = None
    device_prefetch: int = 2
    exchange: Exchange = "workers"
    shard: Shard = "machine"
    feature_store: FeatureStoreOptions | None = None
    remote_cache: int | str | None = None
    weight_attr: str | None = None
    transform: Callable[[Any], Any] | None = None
    transform_sampler_output: Callable[[Any], Any] | None = None
    pad: bool | dict[str, Any] = False
    seed_groups: SeedGroups | None = None
    groups_per_batch: int = DEFAULT_GROUPS_PER_BATCH
    time_window: float | TimeInput | None = field(default=None, compare=False)
    """By seed; one number for all seeds is in `expansion`."""
    input_start_time: TimeInput | None = field(default=None, compare=False)
    input_end_time: TimeInput | None = field(default=None, compare=False)
    expansion: ExpansionOptions = field(default_factory=ExpansionOptions)

    @classmethod
    def of(cls, *, num_neighbors: NumNeighbors, **keywords: Unpack[AllKeywords]) -> "LoaderOptions":
        """Return the options that a constructor was given; each has its default if left out."""
        given: dict[str, Any] = {**keywords}
        by_seed = {"time_window"} if is_by_seed(given.get("time_window")) else set()
        grown = {
            one.name: given.pop(one.name)
            for one in fields(ExpansionOptions)
            if one.name in given.keys() - by_seed
        }
        if isinstance(given.get("sampler_options"), PPRSamplerOptions):
            # The push decides how far it goes, so no fanout was given. A list of one hop passes the
            # checks of fanouts, and becomes the edge types that may be walked.
            num_neighbors = [1]  # only its edge types count
        options = cls(num_neighbors=num_neighbors, expansion=ExpansionOptions(**grown), **given)
        options._check_tokens()  # here alone: the sampler is still the user's
        return options

    def __post_init__(self) -> None:
        check_count(self.batch_size, "batch_size")
        self._check_shuffle()
        check_flag(self.drop_last, "drop_last")
        check_flag(self.with_weight, "with_weight")
        if self.exchange not in ("workers", "collective"):
            raise ConfigError(f'exchange must be "workers" or "collective", got {self.exchange!r}')
        # Checked here as a whole, not in each module, so that a bad value costs nothing: no process
        # group was used, no worker was started, and no other rank waits for this one.
        if self.in_process:
            self._check_no_workers()
        else:
            check_workers(self.num_workers, self.worker_concurrency)
        check_draw(with_weight=self.is_weighted, time_attr=self.expansion.time_attr)
        check_count(self.device_prefetch, "device_prefetch")
        check_shard(self.shard, in_order=self.in_order)
        if self.shard == "world" and self.context is not None:
            raise ConfigError(
                'shard="world" needs the process group in every epoch, and context= ends its own: '
                "call torch.distributed.init_process_group() and leave context out"
            )
        # Only for its error: GLT's options keep sizes as given.
        parse_size(self.channel_size, "channel_size")
        # `cache` itself raises if `remote_cache` cannot be parsed.
        if self.cache is not None and self.in_process:
            raise ConfigError(
                f"remote_cache={self.remote_cache!r} is filled by sampling workers, and this "
                "process samples itself: leave it out, or give the loader workers"
            )
        self._check_device()
        self._check_pad()
        for name in ("prefetch_size", "num_cpu_threads"):
            if getattr(self, name) is not None:
                check_count(getattr(self, name), name)
        self._check_fanouts_agree()

    def _check_shuffle(self) -> None:
        if not isinstance(self.shuffle, bool) and self.shuffle != GROUPS:
            raise ConfigError(f'shuffle must be True, False or "groups", got {self.shuffle!r}')
        check_count(self.groups_per_batch, "groups_per_batch")
        given = self.seed_groups is not None or self.groups_per_batch != DEFAULT_GROUPS_PER_BATCH
        if given and not self.in_groups:
            raise ConfigError(
                f"seed_groups and groups_per_batch say how seeds are shuffled in groups, and "
                f'shuffle={self.shuffle!r}: give shuffle="groups", or leave them out'
            )

    def _check_no_workers(self) -> None:
        """Raise `ConfigError` if a keyword is for workers, and there are none."""
        # 1 is the default: it cannot be told from a number that was left out.
        if self.num_workers not in (0, 1):
            raise ConfigError(
                'exchange="collective" samples in this process: num_workers='
                f"{self.num_workers} processes have nothing to do; leave it out"
            )
        check_workers(1, self.worker_concurrency)
        if self.worker_init_fn is not None:
            raise ConfigError(
                "worker_init_fn is for sampling processes, and this loader starts none"
            )

    def _check_device(self) -> None:
        """Raise `ConfigError` if there is no such device, or the two keywords for it differ."""
        found = [
            checked_device(name, getattr(self, name))
            for name in ("device", "pin_memory_device")
            if getattr(self, name) is not None
        ]
        if len(set(found)) > 1:
            raise ConfigError(
                f"device={self.device!r} and pin_memory_device={self.pin_memory_device!r} differ: "
                "the second is GiGL's name for the first; give one of them"
            )

    def _check_pad(self) -> None:
        check_pad(self.pad)
        if self.pad is not False and self.transform_sampler_output is not None:
            raise ConfigError(
                "pad needs batches as they were sampled: leave transform_sampler_output out, or pad"
            )
        by_bound = self.pad is True or (self.pad and self.pad.get("larger") == "bound")
        if by_bound and self.expansion.adaptive_fanout:
            raise ConfigError(
                "pad=True bounds batches by fan-outs, and adaptive_fanout goes beyond these: give "
                "pad={'nodes': sizes, 'edges': sizes}, as padding_sizes() measures them"
            )

    def _check_tokens(self) -> None:
        """Raise `ConfigError` if there can be no tokens with another option."""
        tokens, sampler = self.expansion.tokens, self.sampler_options
        if tokens is None:
            return
        with_ppr = isinstance(sampler, PPRSamplerOptions)
        if tokens.order == "score" and not with_ppr:
            raise ConfigError(
                'TokenOptions.order="score" is by PPR scores: give sampler_options='
                "PPRSamplerOptions(), or another order"
            )
        if isinstance(sampler, PPRSamplerOptions) and sampler.max_fetch_iterations is not None:
            raise ConfigError(
                "max_fetch_iterations of PPRSamplerOptions counts rounds of a whole batch, and "
                "tokens of a seed do not depend on the others: leave one of them out"
            )
        if isinstance(sampler, CustomSamplerOptions):
            raise ConfigError(
                f"tokens are made by this package's samplers, not by {sampler.class_path}: leave "
                "one of them out"
            )
        if self.transform_sampler_output is not None:
            raise ConfigError(
                "transform_sampler_output changes the nodes that tokens refer to: leave it out, or "
                "tokens"
            )

    def _check_fanouts_agree(self) -> None:
        options = self.sampler_options
        if (
            isinstance(options, KHopNeighborSamplerOptions)
            and options.num_neighbors != self.num_neighbors
        ):
            raise ConfigError(
                f"num_neighbors={self.num_neighbors} and sampler_options.num_neighbors="
                f"{options.num_neighbors} differ: give one value to both"
            )

    @property
    def in_groups(self) -> bool:
        """Whether seeds are shuffled in groups."""
        return self.shuffle == GROUPS

    @property
    def is_weighted(self) -> bool:
        """Whether neighbours are drawn by weight; a name for the weights implies it."""
        return self.with_weight or self.weight_attr is not None

    @property
    def has_no_hop(self) -> bool:
        """Whether ``num_neighbors`` names no hop: batches are then seeds without neighbours."""
        fanouts: Any = self.num_neighbors
        by_type = fanouts.values() if isinstance(fanouts, Mapping) else [fanouts]
        return all(isinstance(hops, list | tuple) and not hops for hops in by_type)

    @property
    def in_process(self) -> bool:
        """Whether the training process samples."""
        num_workers = self.num_workers
        # `False == 0`, but False means something else: `check_workers` refuses it.
        no_workers = num_workers == 0 and not isinstance(num_workers, bool)
        return no_workers or self.exchange == "collective"

    @property
    def batches_ahead(self) -> int:
        """Batches that are requested ahead from each storage server."""
        if self.prefetch_size is not None:
            return self.prefetch_size
        return max(LEAST_PREFETCH, self.worker_concurrency)

    @property
    def cache(self) -> CacheOptions | None:
        """Options of the cache for rows of other machines; None: no cache."""
        return CacheOptions.of(self.remote_cache)

    def sampling_config(self, schema: DatasetSchema) -> SamplingConfig:
        """Return GLT's config, for a dataset of this schema."""
        config = create_sampling_config(
            self.num_neighbors,
            schema,
            self.batch_size,
            bool(self.shuffle),
            self.drop_last,
            self.is_weighted,
            self.with_edge,
            self.seed,
        )
        check_adaptive(config.num_neighbors, self.expansion)
        return config

    def with_chosen_sampler(
        self, default: SamplerKind, schema: DatasetSchema, input_type: str | None
    ) -> "LoaderOptions":
        """Return these options with the path and keywords of the workers' sampler.

        Args:
            default: The loader's own sampler.
            schema: Types and widths of the dataset.
            input_type: Node type of the seeds.

        Raises:
            ConfigError: PPR cannot be combined with the graph or another option.
        """
        if isinstance(self.sampler_options, PPRSamplerOptions):
            self._check_ppr(self.sampler_options, schema)
        chosen = chosen_sampler(self.sampler_options, default, input_type)
        if chosen is self.sampler_options:
            return self
        return dataclasses.replace(self, sampler_options=chosen)

    def _check_ppr(self, options: PPRSamplerOptions, schema: DatasetSchema) -> None:
        if self.is_weighted:
            raise ConfigError(PPR_IS_UNWEIGHTED)
        if dataclasses.replace(self.expansion, tokens=None) != ExpansionOptions():
            raise ConfigError(
                f"{self.expansion} cannot be combined with PPRSamplerOptions, which take the nodes "
                "of largest score and no trees, times or hops: leave one of them out"
            )
        plain = schema.edge_types is None or schema.is_homogeneous_with_labeled_edge_type
        if plain and (options.typed_channel_ratios or options.include_sampled_edges):
            raise ConfigError(
                "typed_channel_ratios and include_sampled_edges of PPRSamplerOptions are for "
                "heterogeneous graphs: a homogeneous batch has one kind of edges"
            )
        walked = [name for name in schema.edge_types or () if not is_label_edge_type(name)]
        taken = [name for name in walked if name[1] == PPR]
        if taken:
            raise ConfigError(
                f"PPRSamplerOptions make edges of the relation {PPR!r}, and the graph has that of "
                f"its own, {taken}: batches could not tell them apart, so rename it"
            )
        unknown = {name for edge_types, _ in options.channels for name in edge_types} - set(walked)
        if unknown:
            raise ConfigError(
                f"PPRSamplerOptions.typed_channel_ratios names {sorted(unknown)}; the edge types "
                f"that can be walked are {walked}"
            )

    def check_feature_store(self, schema: DatasetSchema, num_nodes: Mapping[NodeType, int]) -> None:
        """Raise `ConfigError` if a feature store is named for types that need none."""
        options = self.feature_store
        if options is None:
            return
        own = schema.node_feature_info
        with_features = set(own) if isinstance(own, dict) else set(num_nodes) if own else set()
        wanted = set(num_nodes) if options.node_types is None else set(options.node_types)
        unknown = wanted - set(num_nodes)
        if unknown:
            raise ConfigError(
                f"FeatureStoreOptions.node_types names {sorted(unknown)}, the graph has "
                f"{sorted(num_nodes)}"
            )
        # Named types must have no features of their own. Without names the store is for all types
        # that lack them, and wrong only if none does.
        doubled = wanted & with_features if options.node_types else wanted
        if doubled <= with_features and doubled:
            raise ConfigError(
                f"feature_store={options.class_path} is for node types {sorted(wanted)}, which "
                "have features in the dataset already: leave those out of one of the two"
            )

    def source_options(self) -> SourceOptions:
        """Return seed, order and deadline; a missing seed is drawn now."""
        return SourceOptions(
            seed=seed_or_drawn(self.seed),
            replace=self.replace,
            in_order=self.in_order,
            timeout_s=self.timeout,
            feature_store=self.feature_store,
            weight_attr=self.weight_attr,
            expansion=self.expansion,
            max_restarts=self.max_restarts,
            reconnect_timeout_s=self.reconnect_timeout,
            cache=self.cache,
            groups_per_batch=self.groups_per_batch if self.in_groups else None,
        )

    def group_source(
        self, input_type: NodeType | None, schema: DatasetSchema, num_nodes: Mapping[NodeType, int]
    ) -> GroupSource | None:
        """Return where the groups of seeds are; None: seeds are shuffled without, or not at all.

        Raises:
            ConfigError: See `GroupSource.of`.
        """
        if not self.in_groups:
            return None
        return GroupSource.of(self.seed_groups, input_type, schema, num_nodes)

    def same_on_all_ranks(self, config: SamplingConfig, options: SourceOptions) -> dict[str, str]:
        """Return the options on which all ranks have to agree, as strings by name.

        Args:
            config: Made of these arguments and the schema.
            options: From `source_options`.
        """
        of_batches = options_of_batches(config, self.sampler_options, options)
        # As the user gave them: derived values may depend on the contents of a partition.
        fanouts = self.num_neighbors
        if isinstance(fanouts, Mapping):
            fanouts = {edge_type: list(fanouts[edge_type]) for edge_type in sorted(fanouts)}
        elif isinstance(fanouts, list | tuple):
            fanouts = list(fanouts)
        return {
            **of_batches,
            "shard": self.shard,
            "num_neighbors": repr(fanouts),
            "with_edge": repr(self.with_edge),
            # These decide in which exchanges ranks take part.
            "even_ranks": repr(self.even_ranks),
            "exchange": self.exchange,
        }

    def for_base_loader(self) -> dict[str, Any]:
        """Return the options that `BaseDistLoader` takes by the same names."""
        return {
            "process_start_gap_seconds": self.process_start_gap_seconds,
            "non_blocking_transfers": self.non_blocking_transfers,
            "even_ranks": self.even_ranks,
            "device_prefetch": self.device_prefetch,
            "shard": self.shard,
            "transform": self.transform,
            "transform_sampler_output": self.transform_sampler_output,
        }

    def batch_device(self, local_rank: int) -> torch.device:
        """Return the device of the batches."""
        given = self.pin_memory_device if self.device is None else self.device
        if given is not None:
            return full_device(given)  # as datasets that are moved to "cuda" have it
        if torch.cuda.is_available():
            # Ranks beyond the number of devices share them, for tests and small machines.
            return torch.device("cuda", local_rank % torch.cuda.device_count())
        return torch.device("cpu")


def checked_device(name: str, device: Any) -> torch.device:
    """Return a user's device; raise `ConfigError` if torch has no such device."""
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(f"{name}={device!r} is no torch device: {error}") from None
    if wanted.type not in ("cpu", "cuda"):
        raise ConfigError(
            f"{name}={device!r}: batches are copied to CUDA devices alone; give 'cpu', and move "
            "each batch yourself"
        )
    # `torch.device` takes any index; without this the first copy of the first epoch would fail.
    found = torch.cuda.device_count()
    if wanted.type == "cuda" and (wanted.index or 0) >= found:
        raise ConfigError(
            f"{name}={device!r}, but torch finds {found} CUDA devices here: leave it "
            "out for this process's device, or give 'cpu'"
        )
    return wanted
