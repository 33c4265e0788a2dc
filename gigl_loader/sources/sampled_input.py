"""The input of one producer: the view that it reads, its plan, and the order of its seeds."""

import logging
from typing import Any

import torch
from torch import Tensor

from gigl_loader.batch.message import AT_ONCE_STREAM, BatchTicket, SeedColumns, columns_of
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    NodeType,
    is_label_edge_type,
)
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.glt_classes import SamplingConfig
from gigl_loader.runtime.memory import tensors
from gigl_loader.runtime.system import meminfo
from gigl_loader.sampler.anchors import ANCHOR_KIND
from gigl_loader.sampler.edges import EDGE_KIND
from gigl_loader.sampler.neighbor import NEIGHBOR_KIND, SUBGRAPH_KIND
from gigl_loader.sampler.options import (
    CustomSamplerOptions,
    ExpansionOptions,
    PPRSamplerOptions,
    SamplerOptions,
    SourceOptions,
    TokenOptions,
)
from gigl_loader.sampler.plan import DRAWN_BYTES, SamplingPlan, SeedInput
from gigl_loader.sampler.ppr.ppr_sampler import PPR_KIND, ppr_around
from gigl_loader.sampler.sampler_kinds import SamplerKind

logger = logging.getLogger(__name__)

OWN_KINDS = {
    kind.path: kind for kind in (NEIGHBOR_KIND, SUBGRAPH_KIND, EDGE_KIND, ANCHOR_KIND, PPR_KIND)
}


def sampler_kind(options: SamplerOptions | None) -> SamplerKind:
    """Return the sampler that options name: the k-hop neighbour sampler if they name no class."""
    if not isinstance(options, CustomSamplerOptions):
        return NEIGHBOR_KIND
    own = OWN_KINDS.get(options.class_path)
    if own is None:
        return SamplerKind(options.class_path, options.keywords)
    return own.with_keywords(options.keywords)


def chosen_sampler(
    options: SamplerOptions | None, default: SamplerKind, input_type: NodeType | None
) -> SamplerOptions | None:
    """Return the options that name the workers' sampler by its path, or ``options`` as they are.

    Args:
        options: The user's.
        default: The sampler of the loader, or of its input.
        input_type: Node type of the seeds; None: homogeneous.
    """
    if isinstance(options, PPRSamplerOptions):
        default = ppr_around(default, input_type or DEFAULT_HOMOGENEOUS_NODE_TYPE, options)
    elif isinstance(options, CustomSamplerOptions) or default == NEIGHBOR_KIND:
        return options
    return CustomSamplerOptions(default.path, default.keywords)


def epoch_order(
    num_seeds: int, seed: int, epoch: int, groups: Tensor | None = None, groups_per_batch: int = 1
) -> Tensor:
    """Return the shuffle of an epoch: ``[num_seeds]`` int64, a function of its arguments alone.

    Args:
        num_seeds: How many there are.
        seed: The loader's.
        epoch: Its number.
        groups: ``[num_seeds]`` int64, the group of each, from 0 on. The groups are shuffled and
            dealt into mixes, one mix after another, and the seeds of each mix are shuffled. None:
            all seeds are one mix.
        groups_per_batch: Groups of a mix; the last mix may have fewer.
    """
    # A separate generator: the global one is the user's, and differs between ranks. The multipliers
    # (the first two primes of xxHash32) keep (seed, epoch) and (seed + 1, epoch - 1) apart.
    generator = torch.Generator()
    generator.manual_seed((seed * 0x9E3779B1 + epoch * 0x85EBCA77 + 1) % 2**63)
    shuffled = torch.randperm(num_seeds, generator=generator, device="cpu")
    if groups is None or not num_seeds:
        return shuffled
    places = torch.randperm(int(groups.max()) + 1, generator=generator, device="cpu")
    mixes = (places // groups_per_batch)[groups[shuffled]]
    # stable: within a mix, seeds stay as they were shuffled
    return shuffled[mixes.argsort(stable=True)]


class SeedOrders:
    """The order in which an epoch's seeds are sampled, and the seeds of each batch.

    Args:
        seed_input: The seeds, in the user's order.
        config: Batch size, shuffle, whether an incomplete last batch is left out.
        seed: Seed of the shuffle.
        groups_per_batch: Groups in a mix of seeds that have groups; see `epoch_order`.
    """

    def __init__(
        self,
        seed_input: SeedInput[Tensor],
        config: SamplingConfig,
        seed: int,
        groups_per_batch: int | None = None,
    ) -> None:
        self._seeds, self._config, self._seed = seed_input.seeds, config, seed
        self._groups_per_batch = groups_per_batch or 1
        self._groups = None if groups_per_batch is None else SeedColumns.of(seed_input.extra).group
        self._latest: tuple[tuple[int, int], Tensor | None] = ((-1, 0), None)
        """The last requested epoch with its seed, and its order: consumers tend to be in one."""
        self.at_once: Tensor | None = None
        """Positions of the seeds of the single batch that is sampled beside the epoch."""

    @property
    def num_batches(self) -> int:
        """Number of batches in an epoch over all seeds."""
        config = self._config
        return num_batches(self._seeds.shape[0], config.batch_size, config.drop_last)

    def of(self, stream: int, epoch: int, seed: int | None = None) -> Tensor | None:
        """Return an epoch's order as positions in the input, in shared memory; None: as given.

        Args:
            stream: Number of the consumer; the positions of `AT_ONCE_STREAM` are in ``at_once``.
            epoch: Decides the shuffle, together with the seed.
            seed: In place of this object's own.
        """
        if stream == AT_ONCE_STREAM:
            return self.at_once
        if not self._config.shuffle:
            return None
        # shared once, so that all workers and consumers use one copy of the input's length
        about = epoch, self._seed if seed is None else seed
        if self._latest[0] != about:
            order = epoch_order(
                self._seeds.shape[0], about[1], epoch, self._groups, self._groups_per_batch
            )
            self._latest = (about, tensors.share_tensor(order))
        return self._latest[1]

    def seeds_of(self, ticket: BatchTicket) -> list[int]:
        """Return the ids of the seeds of one batch, for errors."""
        order = self.of(ticket.stream, ticket.epoch, ticket.seed)
        positions = torch.arange(self._seeds.shape[0], device="cpu") if order is None else order
        if ticket.stream != AT_ONCE_STREAM:
            size = self._config.batch_size
            positions = positions[ticket.batch * size : (ticket.batch + 1) * size]
        return self._seeds[positions].tolist()


def seed_or_drawn(seed: int | None) -> int:
    """Return ``seed``, or draw one from torch's global generator and log it."""
    if seed is None:
        seed = int(torch.randint(2**62, (), device="cpu"))
        logger.info("no seed was given: using seed=%d", seed)
    return seed


def make_plan(
    view: PartitionView,
    sampler_input: Any,
    config: SamplingConfig,
    options: SourceOptions,
    channel_bytes: int = 4 * 10**9,
) -> SamplingPlan:
    """Return the workers' plan for a GLT ``SamplingConfig``, and for messages of a channel."""
    expansion = options.expansion
    check_seed_times(view, sampler_input, expansion.time_attr, expansion.tokens)
    check_draw(with_weight=config.with_weight, time_attr=options.expansion.time_attr)
    groups = SeedColumns.of(columns_of(sampler_input)).group
    num_grouped = 0 if groups is None else len(groups)
    if options.groups_per_batch is not None and num_grouped != len(sampler_input):
        raise ConfigError(
            f"groups_per_batch={options.groups_per_batch}, but the input has the groups of "
            f"{num_grouped} of its {len(sampler_input)} seeds"
        )
    fanouts = config.num_neighbors
    if not isinstance(fanouts, dict):
        fanouts = {DEFAULT_HOMOGENEOUS_EDGE_TYPE: fanouts}
    check_adaptive(fanouts, expansion)
    return SamplingPlan(
        input_type=sampler_input.input_type or DEFAULT_HOMOGENEOUS_NODE_TYPE,
        # sorted: nodes of a batch are numbered in this order, and ranks may order types otherwise
        fanouts={name: tuple(fanouts[name]) for name in sorted(fanouts)},
        seed=options.seed,
        with_edge=config.with_edge,
        with_weight=config.with_weight,
        replace=options.replace,
        feature_store=options.feature_store,
        collect_features=config.collect_features,
        expansion=options.expansion,
        # a channel may be small, and then has one batch; a client may say any size
        most_drawn=max(min(channel_bytes, meminfo("MemTotal") // 4), 2**30) // DRAWN_BYTES,
    )


def kernels_of(
    plan: SamplingPlan, sampler: SamplerKind, *, has_peers: bool, caches: bool
) -> list[str]:
    """Return the names of the kernels that workers need, in `supervisor.KERNELS`.

    Args:
        plan: The sampling to do.
        sampler: The sampler; one of the user compiles what else it uses.
        has_peers: Whether workers of other partitions are asked.
        caches: Whether workers keep rows of other machines.
    """
    needs = {
        "uniform": True,
        "owners": has_peers,
        "packed": has_peers,
        "cached": caches,
        "merged": not plan.expansion.in_trees,
        "trees": plan.expansion.draws_in_trees,
        "tokens": plan.expansion.tokens is not None,
        "times": plan.expansion.time_attr is not None,
        "weighted": plan.with_weight,
        plan.expansion.sampling_method: True,
    }
    return [*(name for name, needed in needs.items() if needed), *sampler.kernels]


def sampling_view(data: Any, time_attr: str | None) -> PartitionView:
    """Return the workers' view of a dataset, with edges sorted by time if ``time_attr`` is set."""
    if not hasattr(data, "view"):  # a plain GLT dataset
        data = DistDataset.wrap(data)
    view: PartitionView = data.view() if time_attr is None else data.view_by_time(time_attr)
    return view


def check_files(data: Any) -> None:
    """Check that no file of a dataset has changed; one of GLT's own class has none.

    Raises:
        ConfigError: See `DistDataset.check_files`.
    """
    if isinstance(data, DistDataset):
        data.check_files()


def check_draw(*, with_weight: bool, time_attr: str | None) -> None:
    """Raise `ConfigError` if neighbours are to be drawn by weight and by time."""
    if with_weight and time_attr is not None:
        raise ConfigError("with_weight and time_attr cannot be combined: leave one of them out")


def check_adaptive(fanouts: Any, expansion: ExpansionOptions) -> None:
    """Raise `ConfigError` if free places are to be moved, and a hop takes all neighbours."""
    by_type = fanouts.items() if isinstance(fanouts, dict) else [("num_neighbors", fanouts)]
    unbounded = [name for name, hops in by_type if -1 in hops]
    if expansion.adaptive_fanout and unbounded:
        raise ConfigError(
            f"adaptive_fanout moves the places that a hop leaves free, and {unbounded[0]} takes "
            "all neighbours by -1, which leaves none: give numbers >= 0"
        )


def check_columns(
    view: PartitionView, *, with_weight: bool = False, with_edge: bool = False
) -> None:
    """Check that the graph has the weights or edge ids that are to be sampled by, or with.

    Raises:
        ConfigError: It has not; names the edge types.
    """
    # label edges are looked up for the anchors and never drawn, so they need neither
    walked = {
        name: adjacency
        for name, adjacency in view.adjacency.items()
        if not is_label_edge_type(name)
    }
    # one type with weights suffices, as others are drawn uniformly; edge ids are a batch's column
    # for each type
    if with_weight and all(one.weights is None for one in walked.values()):
        raise ConfigError(
            f"with_weight=True, but edge types {list(walked)} have no weights: give the graph an "
            "edge_weight attribute, or sample without weights"
        )
    missing = [name for name, one in walked.items() if not one.has_edge_ids]
    if with_edge and missing:
        raise ConfigError(f"with_edge=True, but edge types {missing} keep no edge ids")


def check_seed_times(
    view: PartitionView,
    sampler_input: Any,
    time_attr: str | None,
    tokens: TokenOptions | None = None,
) -> None:
    """Check that each seed of a timed loader has a time that can be compared.

    Raises:
        ConfigError: Seeds have no time, or one with a fraction where the graph's have none; or
            tokens are to be in the order of times that no node has.
    """
    if time_attr is None:
        return
    timed = {name for name, attribute in view.node_attributes if attribute == time_attr}
    if tokens is not None and tokens.order == "time" and not timed:
        raise ConfigError(
            f'TokenOptions.order="time" is by times of nodes, and no node has {time_attr!r}: give '
            "another order"
        )
    node_type = sampler_input.input_type or DEFAULT_HOMOGENEOUS_NODE_TYPE
    given = SeedColumns.of(columns_of(sampler_input)).time
    if given is None:
        if (node_type, time_attr) not in view.node_attributes:
            raise ConfigError(
                f"time_attr={time_attr!r} is no attribute of the seeds, nodes {node_type!r}: "
                "give their times as input_time"
            )
        return
    rows = [*view.node_attributes.items(), *view.edge_attributes.items()]
    # compared with integers, a seed's time would lose its fraction, and with it whether an edge of
    # the same second came before or after
    floats = [matrix.values.is_floating_point() for (_, name), matrix in rows if name == time_attr]
    if given.is_floating_point() and not any(floats):
        raise ConfigError(
            f"the seeds' times are {given.dtype}, those of {time_attr!r} integers: give integers"
        )


def num_batches(num_seeds: int, batch_size: int, drop_last: bool) -> int:
    """Return how many batches an epoch over ``num_seeds`` seeds has."""
    return num_seeds // batch_size if drop_last else -(-num_seeds // batch_size)
