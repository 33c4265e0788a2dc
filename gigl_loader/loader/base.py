"""`BaseDistLoader`: one class over two deployments; owns the epoch, not the sampling."""

import contextlib
import functools
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch_geometric.data import Data, HeteroData

from gigl_loader.batch.collate import (
    Batch,
    batch_types,
    frames_of_batches,
    to_data,
    to_hetero_data,
    transform_outputs,
    with_widened_features,
)
from gigl_loader.batch.device.prefetch import CopyEngine
from gigl_loader.batch.edge_ids import answer_for_edge_ids
from gigl_loader.batch.glt_message import GLTMessage, GLTNames, own_message, with_ppr_outputs
from gigl_loader.batch.message import Received, SampleMessage, is_heterogeneous, stays_on_host
from gigl_loader.batch.padding import PAD_ATTRIBUTES
from gigl_loader.batch.tokens import tokens_of
from gigl_loader.dataset.partition.frames import check_installed
from gigl_loader.dataset.schema import DatasetSchema
from gigl_loader.errors import ConfigError, UsageError, explained_limits
from gigl_loader.loader.deployment import process_role
from gigl_loader.loader.deployment.job_ranks import (
    DistributedRuntimeInfo,
    initialize_colocated_sampling_worker,
    resolve_runtime,
)
from gigl_loader.loader.epochs.epoch import EpochProgress, LoaderStats, link_bytes_per_s, saved_seed
from gigl_loader.loader.epochs.iterator import EpochIterator, Epochs, check_length
from gigl_loader.loader.epochs.state_options import OPTIONS, graph_text, recorded_options
from gigl_loader.loader.fixed_attributes import FixedOptions
from gigl_loader.loader.foreign_attributes import NOT_CALLED, AnswersOthers
from gigl_loader.loader.options import glt_config
from gigl_loader.loader.options.pad_shape import Padding
from gigl_loader.loader.seed_class_attributes import AnswersGLT
from gigl_loader.loader.seeds.ablp_input import with_label_sampler
from gigl_loader.loader.seeds.seed_input import Positions, digest_of_seeds, read_positions
from gigl_loader.loader.seeds.world import check_same_input, check_same_start, check_shard
from gigl_loader.runtime.glt_classes import (
    Dataset,
    DistLoader,
    MpDistSamplingWorkerOptions,
    NodeSamplerInput,
    RemoteDistSamplingWorkerOptions,
    SamplingConfig,
    SamplingType,
    get_context,
)
from gigl_loader.runtime.ranks.collectives import COULD_NOT_BUILD, report_failure_to_ranks
from gigl_loader.runtime.system import usable_cpus
from gigl_loader.runtime.user_functions import check_overrides, returned
from gigl_loader.sampler.options import (
    EvenRanks,
    SamplerOptions,
    Shard,
    SourceOptions,
    options_of_batches,
)
from gigl_loader.sampler.plan import draw_version
from gigl_loader.sources.batch_source import BatchSource
from gigl_loader.sources.in_process.in_process_source import InProcessSource
from gigl_loader.sources.other_producer import ProducerSource, SamplesForLoader
from gigl_loader.sources.remote_interface import RemoteDataset
from gigl_loader.sources.sampled_input import seed_or_drawn
from gigl_loader.sources.staggered_start import LeaderTurns, WorkerTurns
from gigl_loader.sources.workers.producer import DistSamplingProducer

logger = logging.getLogger(__name__)


class BaseDistLoader(FixedOptions, AnswersOthers, AnswersGLT, DistLoader):
    """Base of the distributed loaders: resolves the runtime, starts producers, yields PyG batches.

    It sets the attributes of GLT's ``DistLoader.__init__`` without calling it, so that the producer
    can be any class. Subclasses make the parts with the static methods and pass them.

    Args:
        dataset: Colocated: a ``DistDataset``. Graph store: a ``RemoteDistDataset``.
        sampler_input: Colocated: one ``NodeSamplerInput``. Graph store: a list, one per server.
        dataset_schema: Types and widths of the dataset.
        worker_options: Colocated: ``MpDistSamplingWorkerOptions``; graph store:
            ``RemoteDistSamplingWorkerOptions``.
        sampling_config: From `create_sampling_config`.
        device: Device of the batches.
        runtime: From `resolve_runtime`.
        producer: Colocated: a built, not yet started ``DistSamplingProducer``, or any object with
            its ``init``, ``produce_all``, ``shutdown`` and ``output_channel``. Graph store: the
            callable to run on each server, which returns a producer id; None:
            ``DistServer.create_sampling_producer``.
        sampler_options: The sampler of the workers.
        process_start_gap_seconds: Colocated: local rank ``i`` starts its workers ``i`` times this
            later. None: as soon as the local rank before it is ready. Graph store: seconds between
            batches of leaders.
        max_concurrent_producer_inits: Graph store: leaders that create at once; None: all.
        non_blocking_transfers: Copy to a CUDA device on a side stream, ahead of use.
        source_options: Seed, order, deadline.
        even_ranks: ``"drop"`` or ``"wrap"``: every rank takes as many steps as the rank with the
            fewest, or the most, batches. None: each takes its own. With ``shard="world"``, an
            incomplete last step is left out, or completed by the first batches of the epoch.
        device_prefetch: Batches copied ahead to a CUDA device.
        shard: ``"machine"``: this rank takes all batches of its input, whose seeds no other rank
            has (a graph store checks it). ``"none"``: the same, but other ranks may have the same
            seeds. ``"world"``: all ranks have the same input, and rank ``r`` of ``W`` takes its
            batches ``r``, ``r + W``...
        transform: Called with each batch; the loader yields its result instead.
        transform_sampler_output: Called with PyG's ``SamplerOutput`` of each batch.
        padding: Shape of all batches; None: each has its own.
        sampler: Deprecated: ``producer``.
        backend_key: From a graph store: names this rank's producers if ``worker_options`` has no
            ``worker_key``. Ranks of one ``worker_key`` share the producers of a server.

    Raises:
        ConfigError: ``shard="world"``, and ranks differ in their input or options.
        WrongTypeError: Parts of the two deployments are mixed. Nothing was started.
        UsageError: GLT's context is not of the right role.
    """

    _is_forked = False
    """Whether this is a loader's copy in a forked process: the parent owns the loader."""
    shared_by: str | None = None
    """On a graph store: ranks with the same text here share the batches, each of which one of them
    gets. None: each rank has its own."""
    _has_own_collate = False
    """Whether `_collate_fn` is a subclass's."""
    _has_strict_pairs = False
    """Whether the loader draws pairs of nodes that are no edges; see `draw_version`."""

    # The steps by which loaders, and users' subclasses, make the arguments below.
    resolve_runtime = staticmethod(resolve_runtime)
    create_sampling_config = staticmethod(glt_config.create_sampling_config)
    validate_for_weighted_sampling = staticmethod(glt_config.validate_for_weighted_sampling)
    create_colocated_channel = staticmethod(glt_config.create_colocated_channel)
    create_mp_producer = staticmethod(glt_config.create_mp_producer)
    initialize_colocated_sampling_worker = staticmethod(initialize_colocated_sampling_worker)
    create_colocated_worker_options = staticmethod(glt_config.create_colocated_worker_options)
    create_graph_store_worker_options = staticmethod(glt_config.create_graph_store_worker_options)

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        check_overrides(cls, BaseDistLoader, NOT_CALLED)
        cls._has_own_collate = cls._collate_fn is not BaseDistLoader._collate_fn

    # Also of a subclass that calls it: the other ranks wait for this one somewhere in there.
    @report_failure_to_ranks(COULD_NOT_BUILD)
    def __init__(
        self,
        dataset: Dataset | RemoteDataset,
        sampler_input: NodeSamplerInput | list[NodeSamplerInput],
        dataset_schema: DatasetSchema,
        worker_options: MpDistSamplingWorkerOptions | RemoteDistSamplingWorkerOptions,
        sampling_config: SamplingConfig,
        device: torch.device,
        runtime: DistributedRuntimeInfo,
        producer: SamplesForLoader | Callable[..., int] | None = None,
        sampler_options: SamplerOptions | None = None,
        process_start_gap_seconds: float | None = 60.0,
        max_concurrent_producer_inits: int | None = None,
        non_blocking_transfers: bool = True,
        *,
        source_options: SourceOptions | None = None,
        even_ranks: EvenRanks | None = None,
        device_prefetch: int = 2,
        shard: Shard = "machine",
        transform: Callable[[Any], Any] | None = None,
        transform_sampler_output: Callable[[Any], Any] | None = None,
        padding: Padding | None = None,
        sampler: SamplesForLoader | Callable[..., int] | None = None,
        backend_key: str | None = None,
    ) -> None:
        producer = process_role.the_producer(producer, sampler)
        is_remote = process_role.check_deployment(dataset, sampler_input, worker_options, producer)
        if even_ranks not in (None, "drop", "wrap"):
            raise ConfigError(f"even_ranks must be 'drop', 'wrap' or None, got {even_ranks!r}")
        if is_remote and producer is None:
            producer = process_role.remote_source().create_producer
        create_producer: Any = producer
        self._backend_key = backend_key
        self.worker_options = process_role.keyed_options(worker_options, backend_key, runtime.rank)
        self._given_dataset, self.input_data = dataset, sampler_input
        self._dataset_schema, self.sampling_config = dataset_schema, sampling_config
        self._runtime, self._is_remote_worker = runtime, is_remote
        self.to_device = torch.device(device)
        self._set_glt_attributes()
        self._frames = frames_of_batches(dataset_schema, self.edge_dir)
        names = (*self._own_attributes(), *(PAD_ATTRIBUTES if padding is not None else ()))
        glt_config.check_attribute_names(dataset_schema, names, type(self).__name__)
        check_installed(dataset_schema.frames)
        self._is_homogeneous_with_labeled_edge_type = (
            dataset_schema.is_homogeneous_with_labeled_edge_type
        )
        self._node_feature_info = dataset_schema.node_feature_info
        self._edge_feature_info = dataset_schema.edge_feature_info
        self._sampler_options = with_label_sampler(sampler_input, sampler_options)
        # GiGL's names: packed columns are floats in messages
        self._node_quantization_metadata = self._edge_quantization_metadata = None
        self._non_blocking_transfers = non_blocking_transfers
        self._even_ranks, self._shard = even_ranks, shard
        self._device_prefetch, self._padding = device_prefetch, padding
        self._may_split = padding is not None and padding.may_split
        self._stats = LoaderStats()
        self._functions = {
            "transform": transform,
            "transform_sampler_output": transform_sampler_output,
        }
        self._transform = self._stats.timed(glt_config.checked_function("transform", transform))
        self._transform_output = self._stats.timed(
            glt_config.checked_function("transform_sampler_output", transform_sampler_output)
        )
        # One engine for all epochs: its side stream, and device memory, are reused.
        self._engine = self._make_engine()
        self._recorders = self._stats.recorders
        self._given_options = source_options
        self._is_open = False  # a hook sets the source, and opens it
        types = dataset_schema.edge_types
        node_types = None if types is None else self._node_types
        self._glt_names = GLTNames(node_types, self._etype_str_to_rev, types or (), self.edge_dir)
        self._one_at_once = threading.Lock()  # a source has one such batch under way
        self._shutdowned = False
        # Before workers start: an interpreter that ends during their start has to stop them, too.
        process_role.open_loaders.add(self)
        try:
            # Before workers end: whatever happens, all ranks come to the exchange of their steps.
            with report_failure_to_ranks(COULD_NOT_BUILD):
                if is_remote:
                    self._init_graph_store_connections(
                        dataset=dataset,
                        create_producer_fn=create_producer,
                        runtime=runtime,
                        process_start_gap_seconds=process_start_gap_seconds,
                        max_concurrent_producer_inits=max_concurrent_producer_inits,
                    )
                else:
                    self._init_colocated_connections(
                        dataset=dataset,
                        producer=producer,
                        runtime=runtime,
                        process_start_gap_seconds=process_start_gap_seconds,
                    )
                if not self._is_open:
                    self._take_started_producer()
                self._epochs.agree_on_steps(
                    self._source.num_batches,
                    runtime.rank,
                    runtime.world_size,
                    self._even_ranks,
                    is_shared=self._shard == "world",
                )
        # KeyboardInterrupt as well: workers would go on without a loader to shut them down. Nobody
        # waits for their responses yet, hence no lingering.
        except BaseException:
            self.shutdown(idle_timeout=0.0)
            raise
        self._end_of_building()

    # -- start ----------------------------------------------------------------------------------

    def _init_colocated_connections(
        self,
        dataset: Any,
        producer: Any,
        runtime: DistributedRuntimeInfo,
        process_start_gap_seconds: float | None,
    ) -> None:
        """Start the producer in this rank's turn; the seed's hook, with its arguments by keyword.

        A subclass may do more, around ``super()``. One that does not call it sets ``_channel`` and
        ``_mp_producer``, started.

        Args:
            dataset: The loader's.
            producer: The loader's, not started.
            runtime: This process's place in the job.
            process_start_gap_seconds: As for the loader.

        Raises:
            UsageError: GLT's context is not of the right role.
            PeerError: A worker or another rank failed; none is left.
        """
        process_role.check_context(False, get_context())
        self._mp_producer = None if isinstance(producer, InProcessSource) else producer
        self._open(
            self._source_of(producer),
            WorkerTurns(
                gap_s=process_start_gap_seconds,
                local_rank=runtime.local_rank,
                local_world_size=runtime.local_world_size,
            ),
        )

    def _init_graph_store_connections(
        self,
        dataset: Any,
        create_producer_fn: Callable[..., int],
        runtime: DistributedRuntimeInfo,
        process_start_gap_seconds: float | None,
        max_concurrent_producer_inits: int | None,
    ) -> None:
        """Create the producers on the storage servers; the seed's hook, with its arguments.

        A subclass may do more, around ``super()``. One that does not call it creates producers by
        `gigl_loader.graph_store.request_server`, and sets ``_producer_id_list``, their ids in the
        order of ``_server_rank_list``, and ``_channel``.

        Args:
            dataset: The loader's.
            create_producer_fn: Run on each server; returns the id of a producer.
            runtime: This process's place in the job.
            process_start_gap_seconds: As for the loader.
            max_concurrent_producer_inits: As for the loader.

        Raises:
            UsageError: GLT's context is not of the right role.
            PeerError: A server or another rank failed.
        """
        process_role.check_context(True, get_context())
        source = process_role.remote_source()(
            create_producer_fn,
            dataset,
            self.input_data,
            self.sampling_config,
            self.worker_options,
            self._sampler_options,
            self._given_options or SourceOptions(seed=seed_or_drawn(self.sampling_config.seed)),
            pin_memory=self.to_device.type == "cuda",
            shard=self._shard,
            turns=LeaderTurns(
                gap_s=process_start_gap_seconds, max_concurrent=max_concurrent_producer_inits
            ),
        )
        self._open(source, WorkerTurns())

    def _source_of(self, producer: Any, **started: Any) -> BatchSource:
        """Return the source of a producer's batches."""
        if isinstance(producer, DistSamplingProducer | InProcessSource):
            return producer
        self._check_promises(type(producer).__name__)
        sizes = [len(self.input_data)]
        return ProducerSource(producer, sizes, self.sampling_config, self._given_options, **started)

    def _check_promises(self, who: str) -> None:
        """Refuse what only our samplers, and batches with numbers, can do."""
        if self.sampling_config.seed is not None:
            raise ConfigError(
                f"seed={self.sampling_config.seed}: a {who} draws by itself, so the loader cannot "
                "promise the same batches again: leave seed out, and give the producer one of its "
                "own"
            )
        given, plain = _draws(self._given_options), _draws(None)
        if asked := [name for name, value in given.items() if value != plain[name]]:
            raise ConfigError(
                f"{', '.join(asked)}: for the samplers of this package, not for a {who}: leave out "
                "one of the two"
            )
        if self._shard == "world" or self._even_ranks == "wrap":
            raise ConfigError(
                f"shard='world' and even_ranks='wrap' need batches by number, and a {who} sends "
                "whole epochs: leave them out"
            )

    def _take_started_producer(self) -> None:
        """Use what a subclass's hook set, which did not call ours."""
        hook, name = "colocated", "_mp_producer"
        if self._is_remote_worker:
            hook, name = "graph_store", "_producer_id_list"
        producer, channel = vars(self).get(name), vars(self).get("_channel")
        if producer is None or channel is None:
            raise UsageError(
                f"{type(self).__name__}._init_{hook}_connections has to call super(), or set "
                f"_channel and {name}, started"
            )
        if self._is_remote_worker:
            self._use(
                process_role.remote_source().of_hook(
                    dict(zip(self._server_rank_list, producer, strict=True)),
                    [len(one) for one in self.input_data],
                    self.sampling_config,
                    self._given_options,
                    channel,
                )
            )
            # last: what is open by now is shut down if this raises
            self._check_promises(type(channel).__name__)
        else:
            self._use(self._source_of(producer, channel=channel, is_started=True))

    @explained_limits("starting the workers of a loader")
    def _open(self, source: BatchSource, turns: WorkerTurns) -> None:
        self._use(source)
        source.open(turns)
        self._channel = source.channel

    def _use(self, source: BatchSource) -> None:
        self._source, self._epochs, self._is_open = source, Epochs(source), True
        self._is_of_others = isinstance(source, ProducerSource)
        self._input_len = source.input_len
        # Now: a state is often saved because a server was lost, which then could not be asked.
        self._graph = graph_text(self._given_dataset)
        # Ranks that differ learn it before any of them has started a worker.
        self._check_shard()

    def _check_shard(self) -> None:
        """Check that ranks that share their input were given the same; before workers start."""
        options = self._source.source_options
        check_shard(self._shard, in_order=options.in_order)
        # A graph store's source itself compares ranks, when they meet for their producers.
        if self._shard == "world" and self._runtime.world_size > 1 and not self._is_remote_worker:
            of_batches = options_of_batches(self.sampling_config, self._sampler_options, options)
            seed, world_size = options.seed, self._runtime.world_size
            check_same_input(of_batches, seed, self._seeds_digest, world_size)

    def _make_engine(self) -> CopyEngine | None:
        if self.to_device.type != "cuda" or not self._non_blocking_transfers:
            return None
        return CopyEngine(self.to_device, keep_on_host=stays_on_host)

    # -- epochs ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the batches of an epoch on this rank; raise `TypeError` if some are split."""
        self._check_built()
        check_length(known=not self._may_split)
        return self._epochs.num_steps

    def __repr__(self) -> str:
        """Name kind, deployment, seeds, fan-outs, workers and the next epoch; raises nothing."""
        kind = type(self).__name__
        if not hasattr(self, "_channel"):
            return f"{kind}(was not built)"
        deployment = "graph store" if self._is_remote_worker else "colocated"
        closed = ", shut down" if self._shutdowned else ""
        return (
            f"{kind}({deployment}, seeds={self._input_len}, batches={self._epochs.num_steps}, "
            f"num_neighbors={_fanouts_in_words(self.sampling_config.num_neighbors)}, "
            f"batch_size={self.batch_size}, workers={self._source.num_workers}, "
            f"epoch={self.epoch}{closed})"
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next ``iter``; without it, each is one more than the last."""
        self._epochs.set_next(epoch)

    def __iter__(self) -> Iterator[Batch]:
        """Start an epoch. An iterator of an earlier one is ended, and raises when it is used."""
        self._check_usable()
        return self._epochs.begin(self._check_start, self._make_iterator)

    @property
    def _seed(self) -> int:
        """The seed of the draws and of the shuffle."""
        loaded = self._epochs.seed
        return self._source.source_options.seed if loaded is None else loaded

    def _check_start(self, epoch: int, yielded: int) -> None:
        if self._shard == "world":
            check_same_start(epoch, yielded, self._seed, self._runtime.world_size)

    def _make_iterator(self, num_left: int, progress: EpochProgress) -> EpochIterator:
        self._stats.num_received = progress.yielded
        return EpochIterator(
            self._source,
            num_left,
            progress,
            collate=self._collated,
            stats=self._stats,
            engine=self._engine,
            depth=self._device_prefetch,
            split=self._padding.split if self._padding and self._may_split else None,
        )

    def __next__(self) -> Batch:
        """Return the next batch of the iterator that ``iter`` returned, while that is held."""
        iterator = self._epochs.iterator
        if iterator is None:
            raise UsageError(
                "no epoch is under way: use `for batch in loader`, or it = iter(loader)"
            )
        return next(iterator)

    @property
    def epoch(self) -> int:
        """The epoch that the next ``iter`` starts."""
        return self._epochs.next_epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this loader, as torchdata's ``StatefulDataLoader`` does.

        It counts yielded batches, without those prefetched. With ``shard="world"`` it counts those
        of the whole job. All ranks have done as many steps as this one, so one rank's state is the
        state of all. Its entry ``"options"`` names what decides the content of batches.
        """
        self._check_repeatable("state_dict()")
        return self._epochs.state({**self._identity(), OPTIONS: self._options})

    def load_state_dict(self, state: dict[str, Any], strict: bool = True) -> None:
        """Let the next ``iter`` continue from ``state``: no batch twice, none left out.

        Args:
            state: The result of `state_dict`, of this loader or one like it.
            strict: False: go on although batches hold something else than before, for instance
                with another fanout; a log line names the options. Seeds and their order must be
                the same all the same.

        Raises:
            ConfigError: The state is of a loader with other seeds, batch size, world size,
                ``seed``..., or, with ``strict``, with other options that decide the content of
                batches, such as fanouts, ``replace``, ``transform`` or the graph. A changed number
                of workers is fine. A loader without ``seed=`` takes the saved one. Also fine are,
                with ``even_ranks``, the state of another rank, and with ``shard="world"`` another
                number of ranks. A state of an earlier version, without the options, is taken.
        """
        self._check_usable()
        self._check_repeatable("load_state_dict()")
        in_step, identity = self._even_ranks is not None, self._identity()
        # A seed that nobody chose gives way to the saved one, which continues the same batches.
        seed = saved_seed(state) if self.sampling_config.seed is None else None
        if seed is not None:
            identity["seed"] = seed
        self._epochs.load(state, identity, in_step=in_step, options=self._options, strict=strict)
        if seed is not None:
            self._epochs.seed = seed

    def _check_repeatable(self, what: str) -> None:
        if isinstance(self._source, ProducerSource):
            raise UsageError(
                f"{what}: a {self._source.name} sends its batches in any order, so nothing says "
                "where to go on; begin an epoch anew"
            )

    def _identity(self) -> dict[str, Any]:
        of_world = self._shard == "world"
        options = self._source.source_options  # of ranks that share a key: their leader's
        by_logarithm = self.with_weight and not options.replace
        in_groups = options.groups_per_batch is not None
        # One state is valid for any number of ranks if batches are numbered over the job.
        of_rank = {"rank": self._runtime.rank, "world_size": self._runtime.world_size}
        return {
            "shard": self._shard,
            "num_seeds": self._input_len,
            "seeds_digest": self._seeds_digest,
            "num_batches": self._epochs.num_batches if of_world else self._epochs.num_steps,
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "seed": self._seed,
            "draw_version": draw_version(
                by_logarithm=by_logarithm, strict_pairs=self._has_strict_pairs, in_groups=in_groups
            ),
            **({"groups_per_batch": options.groups_per_batch} if in_groups else {}),
            **({} if of_world else of_rank),
            **({"pad": str(self._padding)} if self._may_split else {}),
        }

    @functools.cached_property
    def _options(self) -> dict[str, str]:
        """What decides the content of batches, as states have it."""
        return recorded_options(
            self.sampling_config,
            self._sampler_options,
            self._source.source_options,  # of ranks that share a key: their leader's
            self._functions,
            self._own_options(),
            self._graph,
        )

    @functools.cached_property
    def _seeds_digest(self) -> str:
        # Cached: a trainer may save the state after every step, and this reads all seeds.
        return digest_of_seeds(self.input_data if self._is_remote_worker else [self.input_data])

    def stats(self, reset: bool = False) -> dict[str, Any]:
        """Return counts and times since the loader was built, or since the last reset.

        Keys: ``batches``, ``seeds``, ``tokens``, ``bytes``; in seconds ``elapsed_s``, ``wait_s``
        (for a batch), ``collate_s``, ``transform_s`` (in your functions), ``sample_s``,
        ``gather_s`` (in workers), ``worker_busy_s`` (by worker); rates of these: ``seeds_per_s``,
        ``tokens_per_s``, ``bytes_per_s``, ``wait_share``, ``collate_share``, ``transform_share``
        (of the elapsed time), ``sample_ms``, ``gather_ms`` (per batch), ``worker_busy_share`` (by
        worker); ``queue_depth`` (mean, batches ready at each hand-over), ``partitions_over_tcp``
        (partitions that workers reach over TCP), ``restarts`` (replaced workers), ``network_bytes``
        (between machines, ``"rows"`` and ``"structure"``: ids, edges), ``network_share`` (of
        workers' time, waiting for other machines), ``link_share`` (of the capacity of this
        machine's network; None: unknown), ``rows_by_partition`` (fetched rows), ``hit_rate`` (share
        of the rows of other machines that ``remote_cache`` had; None without), ``verdict`` (the
        limit of the loop, in one line).
        """
        cores = usable_cpus() / self._runtime.local_world_size  # ranks of this machine share them
        summary = self._stats.summary(self._source.remote_bytes, link_bytes_per_s(), cores)
        if reset:
            self._stats.reset()
        return summary

    # -- batches --------------------------------------------------------------------------------

    @property
    def dataset(self) -> range:
        """The positions of this loader's seeds, as in PyG: ``len(loader.dataset)`` counts them."""
        return range(self._input_len)

    def __call__(self, index: Positions) -> Batch:
        """Return the batch of the seeds at ``index``; see `collate`."""
        return self.collate(index)

    def collate(self, index: Positions) -> Batch:
        """Return the batch of the seeds at ``index`` at once, beside an epoch under way.

        The same ``index`` gives the same batch each time: its draws are keyed by ``seed``, and
        independent of epochs. Nothing is counted: `state_dict` and `stats` do not change.

        Args:
            index: ``[n]`` integers, positions among this loader's seeds, in any order, repeats
                allowed. With all nodes of one partition as seeds, a position is the node's id.

        Raises:
            ConfigError: A position is out of range.
            UsageError: This loader cannot sample out of turn: with ``exchange="collective"`` over
                several partitions.
            PeerError: A worker failed.
        """
        self._check_usable()
        positions = read_positions(index, self._input_len)
        with self._one_at_once:
            received = self._source.sample(positions, self._epochs.seed)
        return self._alone(received)

    def _alone(self, received: Received) -> Data | HeteroData:
        """Return the batch of a message that came beside an epoch."""
        message = received.whole()
        # `_collate_fn` assumes that messages were copied ahead; this one was not. It does not use
        # the epoch's engine: that copies in the order of the epoch.
        if self._engine is not None:
            message = self._copied(message)
        counted = self._stats.transform_s, self._stats.tokens
        try:
            return self._collated(message)
        finally:
            self._stats.transform_s, self._stats.tokens = counted

    def collate_fn(self, index: Positions) -> Batch:
        """Do what `collate` does, under the name that PyG's zipped loaders use."""
        return self.collate(index)

    def _copied(self, msg: SampleMessage) -> SampleMessage:
        """Return a host message on the device, except for tensors that are read on the host."""
        return CopyEngine(self.to_device, non_blocking=False, keep_on_host=stays_on_host).copy(msg)

    def _collated(self, msg: SampleMessage) -> Batch:
        """Return the batch of a message, made by `_collate_fn`, which may be a subclass's."""
        if self._has_own_collate:
            msg = GLTMessage(msg, self._glt_names)
        return returned(self._collate_fn(msg), "the method", self._collate_fn, "the batch")

    def _collate_fn(self, msg: SampleMessage) -> Batch:
        """Turn a message into a batch on the device; never changes values.

        An override gets, and may pass on, a mapping by graphlearn-torch's keys (``ids``, ``rows``,
        ``cols``, ``nfeats``...), which answers ours, too; see `gigl_loader.batch.glt_message`.

        With ``non_blocking_transfers`` and a CUDA device, the message was already copied ahead;
        otherwise it is copied now. Counts per hop stay on the host, where they are read.
        """
        if self._has_own_collate or self._is_of_others:
            msg = self._own_message(msg)
        if self.to_device.type != "cpu" and self._engine is None:
            msg = self._copied(msg)
        # First, so that a user's transform sees features as batches have them.
        msg = with_widened_features(msg)
        if self._transform_output is not None:
            types = batch_types(msg, self._dataset_schema, self.edge_dir)
            msg = transform_outputs(msg, self._transform_output, *types)
        if self._padding is not None:
            msg = self._padding.padded(msg)
        batch = returned(self._make_batch(msg), "the method", self._make_batch, "the batch")
        if self._transform is None:
            return batch
        return returned(self._transform(batch), "transform=", self._transform, "the batch")

    def _own_message(self, msg: Mapping[str, Any]) -> SampleMessage:
        """Return a message by our keys."""
        of_nodes = self.sampling_type is SamplingType.NODE
        seed_type = self._input_type if self._glt_names.node_types is not None else None
        batch_size = self.batch_size if of_nodes else None
        return own_message(
            msg, self._glt_names, seed_type, batch_size, may_lack_types=self._is_of_others
        )

    def _own_attributes(self) -> tuple[str, ...]:
        """Return attributes that batches of this kind of loader have, besides those of all."""
        return ()

    def _own_options(self) -> dict[str, Any]:
        """Return options of this kind of loader that decide the content of batches, by name."""
        return {}

    def _make_batch(self, msg: SampleMessage) -> Batch:
        """Turn a message that is on the device into a batch; a hook for subclasses."""
        if is_heterogeneous(msg):
            types = batch_types(msg, self._dataset_schema, self.edge_dir)
            batch: Data | HeteroData = to_hetero_data(msg, *types, self._frames)
        else:
            batch = to_data(msg, self._frames)
        if not self.with_edge:
            answer_for_edge_ids(batch)
        how = self._source.source_options.expansion
        if how.tokens is not None:
            schema, seeds = self._dataset_schema, self._input_type
            batch.tokens = tokens_of(msg, batch, how, schema, self.edge_dir, seeds)
            self._stats.tokens += batch.tokens.num_tokens
        return batch

    def _apply_ppr_outputs(self, data: Any, metadata: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return `with_ppr_outputs`: for the `_collate_fn` of a subclass, nothing here calls it."""
        return with_ppr_outputs(data, metadata)

    # -- end ------------------------------------------------------------------------------------

    def _check_built(self) -> None:
        if "_shutdowned" not in vars(self):
            raise UsageError(
                f"this {type(self).__name__} was not built: its __init__ has to call "
                "super().__init__(dataset, num_neighbors, ...)"
            )

    def _check_usable(self) -> None:
        if self._is_forked:
            raise UsageError(
                f"this {type(self).__name__} was built in another process, of which this one is a "
                "fork, as torch's DataLoader(..., num_workers=1) makes them: iterate over the "
                "loader in the process that built it, it has workers of its own; or build one here"
            )
        self._check_built()
        if self._shutdowned:
            raise UsageError(f"this {type(self).__name__} was shut down: build a new one")

    def shutdown(self, idle_timeout: float | None = None) -> None:
        """Stop the workers, or release the producers on the servers. Idempotent.

        Args:
            idle_timeout: Seconds. With several partitions, the workers keep responding to other
                ranks or servers until these are done, or have sent no request for this long.
                None: 30. 0: not at all, without waiting for servers that do not respond.
        """
        if self._shutdowned:
            return
        # First: a second call, from a signal handler or a finaliser, finds nothing to do, even if
        # this one raises half-way.
        self._shutdowned = True
        process_role.open_loaders.discard(self)
        # The iterator before its source: it cancels its epoch there, and drops batches copied
        # ahead, which may lie in memory that goes with the source.
        if self._is_open:  # else a hook raised before it had one
            self._epochs.end("shutdown() ended it")
            self._source.shutdown(idle_timeout)

    def __enter__(self) -> "BaseDistLoader":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        # After an error the other ranks are usually lost as well: waiting for them would only hide
        # it.
        self.shutdown(idle_timeout=None if error is None else 0.0)

    def __del__(self) -> None:
        # The attribute is missing if a subclass raised before it called `__init__` here.
        if getattr(self, "_shutdowned", True):
            return
        try:
            warnings.warn(
                f"{type(self).__name__} was dropped without shutdown(): use `with`, or call it",
                ResourceWarning,
                stacklevel=2,
            )
        finally:  # the user's filter may make an error of it
            # Python hides that warning by default, and a loader that was not shut down leaves the
            # other ranks without responses. One that has no others just ends: frameworks such as
            # Lightning drop loaders when a run is over.
            if self._is_remote_worker or self.num_data_partitions > 1:
                logger.warning("%s was dropped without shutdown(): use `with`", type(self).__name__)
            # Python would only print it; and no lingering, as the thread that drops a loader has to
            # go on.
            with contextlib.suppress(Exception):
                self.shutdown(idle_timeout=0.0)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refuse to be copied or pickled: a copy would end this loader's workers with itself."""
        raise UsageError(
            f"a {type(self).__name__} cannot be copied or pickled, as its workers and memory are "
            "its own: build one in each process, and take state_dict() for where it stands"
        )


def _fanouts_in_words(fanouts: Any) -> str:
    """Return fan-outs as `repr` shows them: by edge type, or once if all types have the same."""
    if not isinstance(fanouts, Mapping):
        return str(fanouts)
    hops = {tuple(one) for one in fanouts.values()}
    if len(hops) == 1:
        return str(list(*hops))
    return str({"__".join(name): one for name, one in fanouts.items()})


def _draws(options: SourceOptions | None) -> dict[str, Any]:
    """Return the options by which our samplers draw, by name; none: the default ones."""
    options = options or SourceOptions(seed=0)
    return {**options.of_batches(), **vars(options.expansion), "expansion": None}
