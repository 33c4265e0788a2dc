"""The options of a loader, checked as a whole: before anything is started."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from gigl_loader._glt import SamplingConfig
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    DatasetSchema,
    NodeType,
    is_label_edge_type,
)
from gigl_loader.errors import ConfigError
from gigl_loader.loader.config import (
    Device,
    NumNeighbors,
    check_pad,
    check_workers,
    create_sampling_config,
    flag,
    positive,
)
from gigl_loader.loader.runtime import DistributedContext
from gigl_loader.loader.world import check_shard
from gigl_loader.message import PPR
from gigl_loader.options import (
    DEFAULT_MAX_RESTARTS,
    DEFAULT_RECONNECT_S,
    DEFAULT_TIMEOUT_S,
    CacheOptions,
    CustomSamplerOptions,
    EpochOptions,
    EvenRanks,
    Exchange,
    ExpansionOptions,
    FeatureStoreOptions,
    KHopNeighborSamplerOptions,
    PPRSamplerOptions,
    SamplerOptions,
    Shard,
    options_of_batches,
)
from gigl_loader.sampler.kinds import SamplerKind
from gigl_loader.sampler.neighbor import NEIGHBOR_KIND
from gigl_loader.sampler.ppr import ppr_around
from gigl_loader.sizes import parse_size
from gigl_loader.source.sampled_input import check_draw, seed_or_drawn


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """The keywords of all loaders: type, default and meaning of each.

    Built once, by the constructor that the user called, and handed down unchanged. The first
    sixteen stand in each loader's signature, where they may be given by position, and mean what
    `DistNeighborLoader` says. The others are keywords only, which
    `loader.keywords` puts into signatures and docstrings.

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
    shuffle: bool = False
    drop_last: bool = False
    with_weight: bool = False
    sampler_options: SamplerOptions | None = None
    non_blocking_transfers: bool = True
    seed: int | None = None
    """Decides shuffle and draws. None: a seed is drawn once, and logged."""
    replace: bool = False
    """Draw neighbours with replacement."""
    in_order: bool = True
    """Yield batches in order. False trades order for latency."""
    timeout: float = DEFAULT_TIMEOUT_S
    """Seconds without progress before a wait is an error."""
    max_restarts: int = DEFAULT_MAX_RESTARTS
    """Workers to replace in an epoch when they die, or make no progress for ``timeout``; the
    batches stay the same. 0: the first loss is an error."""
    reconnect_timeout: float = DEFAULT_RECONNECT_S
    """Graph store: longest absence of a storage server in seconds, whether it is started again or
    out of reach; the batches stay the same. 0: its loss is an error at once."""
    worker_init_fn: Callable[[int], None] | None = None
    """Called with the worker's number in each worker before it samples."""
    even_ranks: EvenRanks | None = None
    """``"drop"`` or ``"wrap"``: all ranks take the same number of steps."""
    with_edge: bool | None = None
    """Whether batches have edge ids. None: if there are edge features."""
    device: Device | None = None
    """Device of the batches, as ``torch.device`` takes it. None: this process's CUDA device, or the
    CPU."""
    device_prefetch: int = 2
    """Batches copied ahead to a CUDA device."""
    exchange: Exchange = "workers"
    """Colocated, with several partitions: how ranks exchange neighbours and rows. ``"workers"``:
    sampling processes request them over connections. ``"collective"``: without sampling processes
    and ports, threads of this process sample ahead, in step with the other ranks. They exchange by
    ``all_to_all``, rows from device to device if the process group has a backend for that.
    ``timeout`` then also limits the time that a rank computes between batches."""
    shard: Shard = "machine"
    """How seeds are split over ranks. ``"machine"``: ranks of a machine with the same seeds, in the
    same order, share them; a rank with other seeds keeps its own. Seeds that two ranks would both
    use are an error. ``"world"``: all ranks pass the seeds of the whole job, whose batches are
    numbered over all ranks; rank ``r`` of ``W`` takes ``r``, ``r + W``... A state then counts the
    batches of the job, and any number of ranks can continue from it. ``"none"``: each rank uses all
    its seeds, even those of other ranks. All other options that decide batches (``batch_size``,
    fanouts, ``seed``...) are the same on all ranks."""
    feature_store: FeatureStoreOptions | None = None
    """Your own PyG ``FeatureStore``, for features that the dataset lacks."""
    remote_cache: int | str | None = None
    """With workers: a cache for rows of other machines, or with a graph store for all rows; its
    memory as bytes (``"2GB"``, with its index) or as a share of these rows (``"20%"``). Batches are
    drawn ahead, until they need 5 times as many rows as fit, and the cache keeps the rows that are
    needed soonest. The ranks of a machine share it. Colocated, the loaders of a process over the
    same dataset share it, too; with a graph store each loader has its own. A colocated loader that
    lost a worker draws no batches ahead for the rest of the epoch. None: no cache."""
    weight_attr: str | None = None
    """Name of the edge attribute to draw by, in place of ``edge_weight``; implies
    ``with_weight``."""
    transform: Callable[[Any], Any] | None = None
    """Called in this process with each batch; the loader yields its result instead."""
    transform_sampler_output: Callable[[Any], Any] | None = None
    """Called in this process with PyG's ``SamplerOutput`` of each batch; returns it changed. It
    cannot add nodes or edges that were not sampled."""
    pad: bool | dict[str, Any] = False
    """Give all batches the same shapes, by dead nodes and edges that no real node hears of:
    ``pad_node_mask`` and ``pad_edge_mask`` are False there, and all else is 0. True: by what batch
    size and fan-outs bound. ``{"nodes": sizes, "edges": sizes}``, with sizes by type of a
    heterogeneous graph and two dead nodes of each type included: a batch that does not fit is split
    by its seeds into smaller ones, and with ``"larger": "bound"`` it gets the bound's shape
    instead. `gigl_loader.padding_sizes` measures sizes. See the page "Batches of one shape"."""
    expansion: ExpansionOptions = field(default_factory=ExpansionOptions)
    """How batches grow from their seeds; each of its fields is a keyword of its own."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> "LoaderOptions":
        """Return the options among the arguments of a constructor.

        Args:
            arguments: By name, with ``**keywords`` under that name, as ``locals()`` has them.
                Arguments of a single loader are left out.
        """
        by_name = {**arguments, **arguments.get("keywords", {})}
        taken = {one.name: by_name[one.name] for one in fields(cls) if one.name in by_name}
        if isinstance(taken.get("sampler_options"), PPRSamplerOptions):
            # The push decides how far it goes, so no fanout was given. A list of one hop passes the
            # checks of fanouts, and becomes the edge types that may be walked.
            taken["num_neighbors"] = [1]  # only its edge types count
        grown = {one.name: by_name[one.name] for one in fields(ExpansionOptions)
                 if one.name in by_name}  # fmt: skip
        return cls(**taken, expansion=ExpansionOptions(**grown))

    def __post_init__(self) -> None:
        positive("batch_size", self.batch_size)
        flag("shuffle", self.shuffle)
        flag("drop_last", self.drop_last)
        flag("with_weight", self.with_weight)
        if self.exchange not in ("workers", "collective"):
            raise ConfigError(f'exchange must be "workers" or "collective", got {self.exchange!r}')
        # Checked here as a whole, not in each module, so that a bad value costs nothing: no process
        # group was used, no worker was started, and no other rank waits for this one.
        if self.in_process:
            self._check_no_workers()
        else:
            check_workers(self.num_workers, self.worker_concurrency)
        check_draw(with_weight=self.is_weighted, time_attr=self.expansion.time_attr)
        positive("device_prefetch", self.device_prefetch)
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
                positive(name, getattr(self, name))
        self._check_fanouts_agree()

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
    def cache(self) -> CacheOptions | None:
        """Options of the cache for rows of other machines; None: no cache."""
        return CacheOptions.of(self.remote_cache)

    def sampling_config(self, schema: DatasetSchema) -> SamplingConfig:
        """Return GLT's config, for a dataset of this schema."""
        return create_sampling_config(
            self.num_neighbors, schema, self.batch_size, self.shuffle, self.drop_last,
            self.is_weighted, self.with_edge, self.seed,
        )  # fmt: skip

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
        options, sampler = self.sampler_options, default
        if isinstance(options, PPRSamplerOptions):
            self._check_ppr(options, schema)
            sampler = ppr_around(default, input_type or DEFAULT_HOMOGENEOUS_NODE_TYPE, options)
        elif isinstance(options, CustomSamplerOptions) or default == NEIGHBOR_KIND:
            return self
        chosen = CustomSamplerOptions(sampler.path, sampler.keywords)
        return dataclasses.replace(self, sampler_options=chosen)

    def _check_ppr(self, options: PPRSamplerOptions, schema: DatasetSchema) -> None:
        if self.is_weighted:
            raise ConfigError(
                "with_weight=True cannot be combined with PPRSamplerOptions: a push goes to all "
                "neighbours evenly; leave one of them out"
            )
        if self.expansion != ExpansionOptions():
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

    def epoch_options(self) -> EpochOptions:
        """Return seed, order and deadline; a missing seed is drawn now."""
        return EpochOptions(
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
        )

    def same_on_all_ranks(self, config: SamplingConfig, options: EpochOptions) -> dict[str, str]:
        """Return the options on which all ranks have to agree, as strings by name.

        Args:
            config: Made of these arguments and the schema.
            options: From `epoch_options`.
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

    def batch_device(self, local_rank: int) -> torch.device:
        """Return the device of the batches."""
        given = self.pin_memory_device if self.device is None else self.device
        if given is not None:
            return torch.device(given)
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
    # `torch.device` takes any index; without this the first copy of the first epoch would fail.
    found = torch.cuda.device_count()
    if wanted.type == "cuda" and (wanted.index or 0) >= found:
        raise ConfigError(
            f"{name}={device!r}, but torch finds {found} CUDA devices here: leave it "
            "out for this process's device, or give 'cpu'"
        )
    return wanted
