"""Options: frozen, checked once where they are built, sent to workers unchanged."""

import math
import os
import pickle
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, get_args

from gigl_loader.dataset.cache_options import CacheOptions
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.plain_values import check_count, check_flag

_MOST = 2**31 - 1
"""Most nodes, edges or rounds of `PPRSamplerOptions`: kernels count them in an int32."""

DEFAULT_TIMEOUT_S = 120.0
"""Seconds without progress after which a wait for workers or servers is an error."""

DEFAULT_RECONNECT_S = 60.0
"""Seconds that a storage server may be away, until a restart or a new connection."""
DEFAULT_MAX_RESTARTS = 3
"""Replacements per epoch of one loader's workers, on each machine that samples for it."""

SAME_MEMORY_VARIABLE = "GIGL_LOADER_SAME_MEMORY"
"""Environment variable; "0": partitions and batches of storage servers travel over TCP between
processes of one machine, as between machines, instead of being read in place."""


SAME_MACHINE_VARIABLE = "GIGL_LOADER_SAME_MACHINE"
"""Environment variable, for measurements and tests; "0": processes of one machine do the same work
as on separate machines, including all steps to save bytes between these."""


def reads_same_memory() -> bool:
    """Return whether this process reads others' memory, and shares its own: the default."""
    return may_be_one_machine() and os.environ.get(SAME_MEMORY_VARIABLE) != "0"


def may_be_one_machine() -> bool:
    """Return whether processes of one machine may skip the saving of bytes: the default."""
    return os.environ.get(SAME_MACHINE_VARIABLE) != "0"


@dataclass(frozen=True)
class KHopNeighborSamplerOptions:
    """Sample a fixed number of neighbours per hop; the default."""

    num_neighbors: list[int] | dict[EdgeType, list[int]]
    """Fanout per hop, as given to the loader."""


def _check_class_path(options: str, path: object) -> None:
    if isinstance(path, str) and "." in path:
        return
    hint = ""
    if isinstance(path, type):  # workers import it, which its path says how to
        hint = f": give {f'{path.__module__}.{path.__qualname__}'!r}"
    raise ConfigError(
        f"{options}.class_path must read 'package.module.ClassName', got {path!r}{hint}"
    )


@dataclass(frozen=True)
class CustomSamplerOptions:
    """Sample with your own class, which the sampling workers import.

    The class is built as ``cls(view, plan, peers, **keywords)`` and has
    ``sample(request) -> fields``; see ``gigl_loader.sampler.plan.Sampler``. It reads and returns
    numpy arrays, since workers do without torch; one that imports torch makes them start later.
    """

    class_path: str
    """``package.module.ClassName``, importable in the workers."""
    keywords: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_class_path("CustomSamplerOptions", self.class_path)


@dataclass(frozen=True)
class FeatureStoreOptions:
    """Node features from your own PyG ``FeatureStore``: a database, an object store.

    The class is imported by the sampling workers, or by the training process with
    ``num_workers=0``, and opened as ``cls(**keywords)`` once in each thread that samples. Its
    ``get_tensor(group_name, attr_name, index)`` returns the rows of a batch that are not cached;
    ``group_name`` is the node type, None on a homogeneous graph. An exception of the store is a
    ``SamplingError`` in the training loop. With a graph store, the servers open it, if they were
    started with ``--allow-samplers`` for it.

    Raises:
        ConfigError: A value cannot work.
    """

    class_path: str
    """``package.module.ClassName``, importable where it samples."""
    keywords: dict[str, Any] = field(default_factory=dict)
    attr_name: str = "x"
    """Attribute of the store with the features."""
    node_types: tuple[NodeType, ...] | None = None
    """Node types of the store. None: all types without features in the dataset."""
    cache_bytes: int = 64 * 2**20
    """Bytes of the rows that each sampling thread caches, the most recently used."""

    def __post_init__(self) -> None:
        _check_class_path("FeatureStoreOptions", self.class_path)
        check_count(self.cache_bytes, "FeatureStoreOptions.cache_bytes", 0)
        try:
            # here, so that the traceback shows the user's line, and not when workers start
            pickle.dumps(self.keywords)
        except Exception as error:
            raise ConfigError(
                f"FeatureStoreOptions.keywords cannot be sent to workers ({error}): give values, "
                "and let the class open what it needs"
            ) from error


Channel = EdgeType | tuple[EdgeType, ...]
"""Edge types that one channel of `PPRSamplerOptions` walks."""


@dataclass(frozen=True)
class PPRSamplerOptions:
    """Take the nodes of largest personalised PageRank around each seed, by forward push.

    A batch has an edge from each seed to each of its nodes, and no edge of the graph: on a `Data`
    ``edge_index`` (row 0 the seed, row 1 its node) and ``edge_attr``, on a `HeteroData` the same by
    ``(seed type, "ppr", node type)``. ``edge_attr`` is ``[num_edges, 2]`` float32: the score, and
    ``1 / (1 + hops)`` from the seed; rows of a seed descend by score. ``num_neighbors`` of the
    loader has no effect.

    Walks follow the direction of sampling: from a destination to its sources with
    ``edge_dir="in"``, else from a source to its destinations, evenly over all edges of all types. A
    walk ends at a node without edges.

    Raises:
        ConfigError: A value is out of range, or channels do not add up.
    """

    alpha: float = 0.5
    """Probability to go back to the seed at each step, in (0, 1)."""
    eps: float = 1e-4
    """A node is pushed while its residual is at least ``eps`` times its degree. On an undirected
    graph, a score is at most that much below the exact one."""
    max_ppr_nodes: int = 50
    """Maximum number of nodes of each type for one seed."""
    enable_residual_topup: bool = True
    """Add the residual of each node, which was not pushed on, to its score. Fill free positions
    with nodes that have only a residual."""
    num_neighbors_per_hop: int = 1_000
    """Maximum number of edges of one type to follow from a node; of more, this many are drawn."""
    max_fetch_iterations: int | None = None
    """Maximum number of rounds of requests for rows; then walks end at missing rows. None: no
    limit."""
    typed_channel_ratios: dict[Channel, float] | None = None
    """Heterogeneous: walks that use the edge types of one channel only, and the share of
    ``max_ppr_nodes`` that each should fill; a node counts for the channel of its highest score, and
    positions left over go by score. ``edge_attr`` is then ``[num_edges, 2 + 3 * channels]``: the
    largest score, the largest proximity, and by channel score, proximity, and 1 if the node came
    from it."""
    include_sampled_edges: bool = False
    """Heterogeneous: deliver the edges among the nodes of the batch that were followed, too."""

    def __post_init__(self) -> None:
        # 1 would stay at the seed for ever, 0 would never return to it
        if not 0 < self.alpha < 1:
            raise ConfigError(f"PPRSamplerOptions.alpha must be in (0, 1), got {self.alpha!r}")
        if not 0 < self.eps < math.inf:
            raise ConfigError(f"PPRSamplerOptions.eps must be > 0, got {self.eps!r}")
        check_count(self.max_ppr_nodes, "PPRSamplerOptions.max_ppr_nodes", most=_MOST)
        check_count(
            self.num_neighbors_per_hop, "PPRSamplerOptions.num_neighbors_per_hop", most=_MOST
        )
        if self.max_fetch_iterations is not None:
            check_count(
                self.max_fetch_iterations, "PPRSamplerOptions.max_fetch_iterations", most=_MOST
            )
        _check_channels(self.typed_channel_ratios)

    @property
    def channels(self) -> list[tuple[list[EdgeType], float]]:
        """``typed_channel_ratios`` as (edge types, ratio)."""
        ratios = self.typed_channel_ratios or {}
        return [(edge_types_of(channel), float(ratio)) for channel, ratio in ratios.items()]


def edge_types_of(channel: Any) -> list[EdgeType]:
    """Return the edge types of one channel.

    Raises:
        ConfigError: It is no edge type, nor a tuple of them.
    """
    # an edge type is a tuple as well: the contents decide
    several = (channel,) if _is_edge_type(channel) else channel
    if not isinstance(several, tuple) or not several or not all(map(_is_edge_type, several)):
        raise ConfigError(
            "PPRSamplerOptions.typed_channel_ratios must name an edge type, or a tuple of them, "
            f"got {channel!r}"
        )
    return [(src, relation, dst) for src, relation, dst in several]


def _is_edge_type(value: Any) -> bool:
    triple = isinstance(value, tuple) and len(value) == 3
    return triple and all(isinstance(part, str) for part in value)


def _check_channels(ratios: dict[Channel, float] | None) -> None:
    for channel, ratio in (ratios or {}).items():
        edge_types_of(channel)
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
            raise ConfigError(
                f"PPRSamplerOptions.typed_channel_ratios[{channel}] must be in (0, 1], got "
                f"{ratio!r}"
            )
    # 0.1 * 10 does not sum to 1 in binary
    if ratios and not math.isclose(sum(ratios.values()), 1.0, rel_tol=1e-9):
        raise ConfigError(
            "the ratios of PPRSamplerOptions.typed_channel_ratios must sum to 1, got "
            f"{list(ratios.values())}"
        )


SamplerOptions = KHopNeighborSamplerOptions | CustomSamplerOptions | PPRSamplerOptions


# The closed choices of loaders: type checkers see a misspelt one.
Shard = Literal["machine", "world", "none"]
EvenRanks = Literal["drop", "wrap"]
Exchange = Literal["workers", "collective"]
Shuffle = bool | Literal["groups"]
GROUPS: Literal["groups"] = "groups"
DEFAULT_GROUPS_PER_BATCH = 16
TemporalStrategy = Literal["uniform", "last"]
SamplingMethod = Literal["uniform", "labor"]
if TYPE_CHECKING:  # workers import this module and do without PyG, whose enum is taken, too
    from torch_geometric.sampler.base import SubgraphType as _PyGSubgraphType

    SubgraphType: TypeAlias = Literal["directional", "bidirectional", "induced"] | _PyGSubgraphType
else:
    SubgraphType = Literal["directional", "bidirectional", "induced"]
SUBGRAPH_TYPES = ("directional", "bidirectional", "induced")
TEMPORAL_STRATEGIES = get_args(TemporalStrategy)
SAMPLING_METHODS = get_args(SamplingMethod)
BY_TIME: Literal["by_time"] = "by_time"


TokenOrder = Literal["hop", "score", "time", "random"]
TokenFill = Literal["pad", "repeat"]
TokenLayout = Literal["padded", "varlen"]
TOKEN_ORDERS, TOKEN_FILLS = get_args(TokenOrder), get_args(TokenFill)
TOKEN_LAYOUTS = get_args(TokenLayout)
_MOST_TOKENS = 2**20 - 1
_LONGEST_WALK = 1023


@dataclass(frozen=True)
class TokenOptions:
    """Give each seed a sequence of nodes, which graph transformers read: ``batch.tokens``.

    A seed's tokens come from its own tree, or are its own PPR nodes, so they depend on the seed,
    its time, its position in the loader's input, and the epoch, never on the other seeds of a
    batch. The batch has the nodes that are tokens, each once, and the edges that were drawn between
    two tokens of one seed; with PPR, the nodes and edges of PPR. See `gigl_loader.Tokens`.

    Raises:
        ConfigError: A value is unknown, or two of them cannot work together.
    """

    max_tokens: int
    """Most tokens of a seed, itself included; the others are left out from the end."""
    order: TokenOrder = "hop"
    """Order of the tokens behind the seed. ``"hop"``: by hop, then in the order of the tree:
    parents in the order of tokens, edge types sorted, edges as drawn; with PPR by hop, then score.
    ``"score"``: by descending PPR score. ``"time"``: the latest first, nodes without a time last.
    ``"random"``: a new order in each epoch. Ties are in the order of the tree, or by score."""
    fill: TokenFill = "pad"
    """What a seed with fewer tokens gets. ``"pad"``: padding. ``"repeat"``: its own tokens again,
    drawn with replacement from those behind the seed; a seed without any repeats itself."""
    pairs: bool = False
    """Whether there is ``tokens.pair``, the edges drawn between tokens of one seed."""
    layout: TokenLayout = "padded"
    """``"padded"``: ``[seeds, max_tokens]``; ``"varlen"``: ``[tokens]``, with ``cu_seqlens``."""
    walk_length: int = 0
    """Steps of ``tokens.walk``, the random-walk landing probabilities; 0: none."""
    with_degree: bool = False
    """Whether there is ``tokens.degree``."""

    def __post_init__(self) -> None:
        for name, known in (
            ("order", TOKEN_ORDERS),
            ("fill", TOKEN_FILLS),
            ("layout", TOKEN_LAYOUTS),
        ):
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"TokenOptions.{name} must be one of {known}, got {getattr(self, name)!r}"
                )
        check_count(self.max_tokens, "TokenOptions.max_tokens", most=_MOST_TOKENS)
        check_count(self.walk_length, "TokenOptions.walk_length", 0, _LONGEST_WALK)
        check_flag(self.pairs, "TokenOptions.pairs")
        check_flag(self.with_degree, "TokenOptions.with_degree")
        if self.fill == "repeat" and self.layout == "varlen":
            raise ConfigError(
                'TokenOptions: fill="repeat" fills places up to max_tokens, and layout="varlen" '
                "has none to fill: leave one of them out"
            )


class ExpansionKeywords(TypedDict, total=False):
    """Names and types of the fields of `ExpansionOptions`, as keywords of loaders."""

    subgraph_type: SubgraphType
    disjoint: bool | Literal["by_time"]
    time_attr: str | None
    temporal_strategy: TemporalStrategy
    sampling_method: SamplingMethod
    with_hop: bool
    tokens: TokenOptions | None
    adaptive_fanout: bool


@dataclass(frozen=True, kw_only=True)
class ExpansionOptions:
    """How a batch grows from its seeds, beyond fanouts and weights.

    Raises:
        ConfigError: A value is unknown, or two of them cannot work together.
    """

    subgraph_type: SubgraphType = "directional"
    """``"directional"``: the sampled edges; ``"bidirectional"``: these in both directions, each
    once; ``"induced"``: all edges between the sampled nodes."""
    disjoint: bool | Literal["by_time"] = False
    """True: every seed has its own tree, and ``batch`` has the seed of each node. ``"by_time"``,
    with ``time_attr``: the seeds of one time share a tree, and ``batch`` has the first of them."""
    time_attr: str | None = None
    """An attribute of nodes or edges: no node or edge later than its seed is sampled. Trees are
    then disjoint, since each has its own time."""
    temporal_strategy: TemporalStrategy = "uniform"
    """``"last"``: the latest neighbours instead of any."""
    time_window: float | None = None
    """Greatest age of a neighbour at the time of its seed, in units of the attribute: one number
    for all seeds, or one for each as in ``input_time``. None: any age."""
    sampling_method: SamplingMethod = "uniform"
    """Method of the draws. ``"labor"``: seeds of a batch share neighbours (layer-neighbour
    sampling); each still has a uniform draw."""
    with_hop: bool = False
    """Whether each node has its ``hop``, ``[num_nodes]`` int64: the hop in which it was found
    first, 0 for seeds. Dead nodes of ``pad=`` have 0."""
    tokens: TokenOptions | None = None
    """Give each seed a sequence of nodes, ``batch.tokens``, as graph transformers read it; see the
    page "Sequences for transformers". None: there is none."""
    adaptive_fanout: bool = False
    """Whether the places that a hop leaves free in a seed's tree, for lack of neighbours, go to its
    next hop, evenly over the nodes expanded there, and what is still free to the hop after. Needs a
    tree for each seed, and fan-outs >= 0."""

    def __post_init__(self) -> None:
        for name, known in (
            ("subgraph_type", SUBGRAPH_TYPES),
            ("temporal_strategy", TEMPORAL_STRATEGIES),
            ("sampling_method", SAMPLING_METHODS),
        ):
            value = getattr(self, name)
            value = getattr(value, "value", value)  # PyG's SubgraphType is an enum
            if value not in known:
                raise ConfigError(f"{name} must be one of {known}, got {value!r}")
            # the only write to a frozen object: an enum of PyG's is stored as a string, which
            # workers can read without PyG
            object.__setattr__(self, name, value)
        if not isinstance(self.disjoint, bool) and self.disjoint != BY_TIME:
            raise ConfigError(f"disjoint must be True, False or {BY_TIME!r}, got {self.disjoint!r}")
        self._check_time()
        if self.in_trees and self.subgraph_type == "induced":
            raise ConfigError(
                'subgraph_type="induced" needs one graph of all seeds, and disjoint or timed '
                'sampling makes a tree of each: use "directional" or "bidirectional"'
            )
        if self.in_trees and self.sampling_method == "labor":
            raise ConfigError(
                'sampling_method="labor" lets seeds share neighbours, which disjoint or timed '
                "trees do not: leave one of them out"
            )
        self._check_tokens()
        check_flag(self.adaptive_fanout, "adaptive_fanout")
        if self.adaptive_fanout and (self.by_time or not self.draws_in_trees):
            raise ConfigError(
                "adaptive_fanout moves places from hop to hop within the tree of one seed, and "
                "here seeds share nodes: give disjoint=True, or time_attr"
            )

    def _check_tokens(self) -> None:
        if self.tokens is None:
            return
        if not isinstance(self.tokens, TokenOptions):
            raise ConfigError(f"tokens must be TokenOptions(max_tokens, ...), got {self.tokens!r}")
        for name, fits, what in (
            (
                "disjoint",
                False,
                "each seed has a tree of its own, and each node one row in the batch",
            ),
            ("subgraph_type", "directional", "they are nodes of the seed's tree"),
            ("sampling_method", "uniform", "seeds may not share neighbours"),
            ("with_hop", False, "tokens.hop has the hop of each token, in its seed's own tree"),
        ):
            if (value := getattr(self, name)) != fits:
                raise ConfigError(
                    f"{name}={value!r} cannot be combined with tokens: {what}; give {fits!r}"
                )
        if self.tokens.order == "time" and self.time_attr is None:
            raise ConfigError('TokenOptions.order="time" needs time_attr')

    def _check_time(self) -> None:
        if self.time_attr is None:
            if self.time_window is not None or self.temporal_strategy != "uniform" or self.by_time:
                raise ConfigError(
                    f"temporal_strategy, time_window and disjoint={BY_TIME!r} need time_attr"
                )
            return
        if not isinstance(self.time_attr, str):
            raise ConfigError(f"time_attr must name an attribute, got {self.time_attr!r}")
        window = self.time_window
        if window is not None and not (isinstance(window, (int, float)) and window >= 0):
            raise ConfigError(f"time_window must be a number >= 0 or None, got {window!r}")

    @property
    def in_trees(self) -> bool:
        """Whether batches are disjoint trees."""
        return self.draws_in_trees and self.tokens is None

    @property
    def draws_in_trees(self) -> bool:
        """Whether neighbours are drawn for the trees of seeds."""
        return bool(self.disjoint) or self.time_attr is not None or self.tokens is not None

    @property
    def by_time(self) -> bool:
        """Whether there is one tree per seed time instead of one per seed."""
        return self.disjoint == BY_TIME


def sampler_text(options: SamplerOptions | None) -> str:
    """Return a description to compare samplers of different ranks; for a custom class, its path."""
    return options.class_path if isinstance(options, CustomSamplerOptions) else repr(options)


def options_of_batches(
    config: Any, sampler_options: SamplerOptions | None, options: "SourceOptions"
) -> dict[str, str]:
    """Return the options that must be equal on all ranks of a job, as strings by name.

    Args:
        config: GLT's ``SamplingConfig``.
        sampler_options: Another sampler, or None.
        options: Options of the epochs. Their seed counts if the user gave one.
    """
    texts = {**options.of_batches(), **{name: repr(value) for name, value in vars(config).items()}}
    if options.feature_store is not None:  # its address may differ by machine
        texts["feature_store"] = options.feature_store.class_path
    fanouts = getattr(config, "num_neighbors", None)
    if isinstance(fanouts, dict):  # the order of edge types does not matter
        texts["num_neighbors"] = repr(dict(sorted(fanouts.items())))
    texts["seed"] = "none" if config.seed is None else str(options.seed)
    return {**texts, "sampler_options": sampler_text(sampler_options)}


def check_seed(seed: Any) -> None:
    """Check the seed of a loader's draws: it must fit an int64, the type in kernels and messages.

    Raises:
        ConfigError: It does not.
    """
    is_int = isinstance(seed, int) and not isinstance(seed, bool)
    if not (is_int and 0 <= seed < 2**63):
        raise ConfigError(f"seed must be an integer in [0, 2**63), got {seed!r}")


def check_reconnect(seconds: float) -> None:
    """Refuse an invalid ``reconnect_timeout``.

    Raises:
        ConfigError: It is no finite number of seconds >= 0.
    """
    if not (isinstance(seconds, (int, float)) and 0 <= seconds < math.inf):
        raise ConfigError(f"reconnect_timeout must be seconds >= 0, got {seconds!r}")


_NOT_OF_BATCHES = (
    "in_order",
    "timeout_s",
    "max_restarts",
    "reconnect_timeout_s",
    "cache",
    "asks_for_rows",
)
"""Fields of `SourceOptions` that may differ between ranks which share batches."""


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """A loader's way through its seeds, besides GLT's ``SamplingConfig``."""

    seed: int
    """``[0, 2**63)``; with epoch and batch index it decides every draw and the shuffle."""
    replace: bool = False
    """Draw neighbours with replacement."""
    in_order: bool = True
    """Yield batches in order, as ``torch.utils.data.DataLoader`` does by default."""
    timeout_s: float = DEFAULT_TIMEOUT_S
    """Timeout in seconds without progress."""
    feature_store: FeatureStoreOptions | None = None
    """Source of node features that the dataset lacks; None: no source."""
    weight_attr: str | None = None
    """Edge attribute to draw by, with ``with_weight``; None: the edges' weights."""
    expansion: ExpansionOptions = field(default_factory=ExpansionOptions)
    """How batches grow from their seeds."""
    max_restarts: int = DEFAULT_MAX_RESTARTS
    """Replacements per epoch of one producer's workers; 0: the first loss is an error."""
    reconnect_timeout_s: float = DEFAULT_RECONNECT_S
    """Seconds that a storage server may be away before an error; 0: an error at once."""
    cache: CacheOptions | None = None
    """Cache of other machines' rows; None: no cache. With a graph store the compute process has it,
    and batches travel without rows."""
    groups_per_batch: int | None = None
    """Groups of seeds that are mixed at a time, with the column `batch.message.SEED_GROUP`;
    None: seeds are shuffled without regard to groups."""
    asks_for_rows: bool = False
    """Graph store: the compute process fetches rows from their owners if the sampling server does
    not own them, so that each row crosses the network once."""

    @property
    def producers_cache(self) -> CacheOptions | None:
        """The cache of the producer's workers; None: they have none, though their reader may."""
        return None if self.asks_for_rows else self.cache

    def of_batches(self) -> dict[str, str]:
        """Return the options that decide the content of a batch, as strings by name."""
        names = [field.name for field in fields(self) if field.name not in _NOT_OF_BATCHES]
        return {name: repr(getattr(self, name)) for name in names}

    def __post_init__(self) -> None:
        check_seed(self.seed)
        # also refuses nan, which compares false
        if not (isinstance(self.timeout_s, (int, float)) and 0 < self.timeout_s < math.inf):
            raise ConfigError(
                f"timeout must be > 0 seconds, and there always is one; got {self.timeout_s!r}"
            )
        if self.replace and self.expansion.sampling_method == "labor":
            raise ConfigError(
                'sampling_method="labor" draws without replacement: use replace=False'
            )
        check_reconnect(self.reconnect_timeout_s)
        check_count(self.max_restarts, "max_restarts", 0)
