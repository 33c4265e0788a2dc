"""`full_graph`: an unchanged model over all nodes, each rank computing its own.

Every message-passing module gets two hooks. Before it runs, the rows of neighbours owned by other
ranks are fetched and put behind the own rows; after it, its output is cut to own rows::

    own rows --(linear, norm, activation: as they are)--> own rows
        |  pre-hook: all_to_all                               ^
        v                                                     | post-hook: cut
    own rows + halo ----------> GATConv, SAGEConv... ---------+

So everything outside of these modules sees only own rows, and needs no change.
"""

import inspect
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gigl_loader.batch.collate import Batch
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import NodeType
from gigl_loader.errors import ConfigError
from gigl_loader.inference.local_graph import EdgePlan, Level, LocalGraph, local_graph
from gigl_loader.inference.modules import (
    SEVERAL_HOPS,
    WholeGraphNorms,
    check_model,
    check_sequential,
    is_normalized,
    units,
)
from gigl_loader.inference.sequential import SequentialAggregation
from gigl_loader.runtime.plain_values import check_flag
from gigl_loader.runtime.ranks.collectives import RankExchange, check_same_options

logger = logging.getLogger(__name__)

_NODE_LEVEL = ("x", "x_0")


@contextmanager
def full_graph(
    model: torch.nn.Module,
    dataset: DistDataset,
    *,
    nodes: Tensor | Mapping[NodeType, Tensor] | None = None,
    device: torch.device | str | None = None,
    seed: int = 0,
    sequential: bool = False,
    group: dist.ProcessGroup | None = None,
) -> Iterator[Batch]:
    """Let ``model`` compute over the whole graph inside a ``with`` block, unchanged.

    All ranks enter together, run the model equally often, and, in training, all call ``backward``
    (a rank whose rows have no loss adds ``0 * out.sum()``). Edges are as in a sampled batch with
    all neighbours: they point from a neighbour to its node. ::

        with full_graph(model, dataset) as data, torch.no_grad():
            out = model(data.x, data.edge_index)  # a row for each of data.n_id

    If the loss is a sum over nodes, the ranks' gradients add up to those of one process. Dropout of
    nodes and edges is drawn by global id on a homogeneous graph, so that it does not depend on the
    number of ranks; ``BatchNorm`` takes its statistics over all ranks.

    Args:
        model: A model of PyG's modules; homogeneous, or heterogeneous by ``HeteroConv`` or
            ``to_hetero``.
        dataset: This rank's partition. Ranks with the same one share its nodes.
        nodes: Global ids of the nodes to compute (``{node type: ids}`` if there are types), of any
            owner; the union over ranks counts. Each layer then computes only the rows that these
            need; other rows of the output have no meaning. ``data.out_index`` has their rows on
            this rank, ascending. None: all nodes.
        device: Device of rows and edges; None: that of the model's parameters.
        seed: Decides dropout; the forwards of one context differ.
        sequential: Aggregate over the neighbours of one rank at a time, and fetch their rows again
            in the backward pass (SAR): a rank then holds the rows of itself and of one other, not
            those of all its neighbours, and takes longer. For layers that take a sum or a mean, and
            ``GATConv``; computes all rows, also with ``nodes``. The same on all ranks.
        group: Process group of the ranks; None: the default one, or a single process.

    Yields: Rows of own nodes in the order of ``n_id`` (``x``, ``y``, ``train_mask``...), and the
    edges into them. ``edge_index`` must reach the layers unchanged, since it identifies the edges.

    Raises:
        ConfigError: A module is not supported (the message names it), the ranks lack a partition,
            or differ in ``sequential``.
        PeerError: A rank ended; from the model's forward or backward too.
    """
    unknown = check_model(model)
    if unknown:
        logger.warning(
            "no test has compared %s with one process: it computes the same only if all that it "
            "knows of other nodes is the rows of x that propagate() gathers",
            unknown,
        )
    check_flag(sequential, "sequential")
    if sequential:
        check_sequential(model)
    dataset = DistDataset.wrap(dataset)
    exchange = RankExchange(group, "rows of the full graph were exchanged")
    everyone = exchange.gather({"sequential": str(sequential)}, dict[str, str])
    check_same_options(everyone, "full_graph")
    # without parameters, torch's default device
    position = torch.device(device or next((p.device for p in model.parameters()), "cpu"))
    session = _FullGraphRun(
        model,
        dataset,
        nodes,
        position,
        seed,
        exchange,
        # one rank has no rows of others
        SequentialAggregation() if sequential and exchange.size > 1 else None,
    )
    with ExitStack() as stack:
        session.attach(stack)
        yield session.graph.data


@dataclass
class _RunningModule:
    """A module that is running."""

    plan: EdgePlan
    level: Level
    weight: Tensor | None
    calls: int = 0
    """Number of its propagations."""


class _FullGraphRun:
    def __init__(
        self,
        model: torch.nn.Module,
        dataset: DistDataset,
        nodes: Any,
        device: torch.device,
        seed: int,
        exchange: RankExchange,
        sequential: SequentialAggregation | None,
    ) -> None:
        self._model, self._sequential = model, sequential
        self._units = units(model)
        # A layer of several hops reads further than the one hop that narrow_plans() counts for it.
        several_hops = any(type(module).__name__ in SEVERAL_HOPS for module in self._units)
        self._narrow = nodes is not None and not several_hops and sequential is None
        # modules of a HeteroConv are one layer together
        num_layers = len(set(self._units.values())) if self._narrow else 0
        self.graph: LocalGraph = local_graph(dataset, exchange, device, nodes, num_layers)
        # An edge_index is recognised by identity: the tensor that the user passes from `data` to
        # the model tells which edges these are. So `data` is given the plan's own, not the copy
        # that was made for the device.
        self._plans = {id(plan.whole.edge_index): plan for plan in self.graph.plans.values()}
        # in the order of local_graph(), which is that of the plans
        stores = self.graph.data.edge_stores
        for store, plan in zip(stores, self.graph.plans.values(), strict=True):
            store.edge_index = plan.whole.edge_index
        self._num_own = {name: ids.numel() for name, ids in self.graph.shares.own_ids.items()}
        self._norms = WholeGraphNorms([s.edge_weight for s in stores if "edge_weight" in s])
        self._statistics = WholeGraphStatistics(self.graph, seed, rows_missing=nodes is not None)
        self._frames: list[_RunningModule] = []
        self._order: dict[int, int] = {}
        self._ran: set[torch.nn.Module] = set()

    def attach(self, stack: ExitStack) -> None:
        """Hook into the modules until ``stack`` ends."""
        # at the beginning of every forward, also after one that raised in the middle
        handles = [self._model.register_forward_pre_hook(self._begin)]
        module: Any  # PyG has no types
        for module in self._units:
            handles += [
                module.register_forward_pre_hook(self._before_call, with_kwargs=True),
                # always: a frame left after an error would be the next layer's
                module.register_forward_hook(self._after_call, with_kwargs=True, always_call=True),
                module.register_edge_update_forward_pre_hook(self._edge_update),
            ]
            if self._sequential is None:
                handles.append(module.register_propagate_forward_pre_hook(self._propagate))
            else:
                # no hook: one can change the arguments of a call, and not make several of it
                _replace(module, "propagate", self._propagate_rank_after_rank, stack)
                _replace(module, "edge_updater", self._update_edges_of_halo, stack)
        for handle in handles:
            stack.callback(handle.remove)
        stack.enter_context(self._statistics)

    # -- hooks -------------------------------------------------------------------------------------

    def _begin(self, model: torch.nn.Module, args: Any) -> None:
        self._frames.clear()
        self._order.clear()
        self._ran.clear()
        self._statistics.begin()

    def _before_call(self, module: Any, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any]]:
        # by name: some layers take edge_weight third, others edge_attr, and users give either way
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        given = bound.arguments
        plan = self._plan_of(module, given["edge_index"])
        level = plan.level(self._hops_to_come(module))
        # from here on _after_call() removes it again, also after an error below
        self._frames.append(_RunningModule(plan, level, given.get("edge_weight")))
        self._check_loops(module, plan)
        edges, given["edge_index"] = level.edges, level.edge_index
        if self._sequential is not None and is_normalized(module):
            # it looks up degrees by row, of which it gets its own; _propagate() replaces the result
            edges = self._sequential.own_edges(level)
            given["edge_index"] = level.edge_index[:, edges]
        for name, value in given.items():
            if name in _NODE_LEVEL:
                given[name] = self._append_halo(module, level, value)
            elif name.startswith("edge_") and name != "edge_index" and isinstance(value, Tensor):
                given[name] = value if edges is None else value[edges]
            elif name == "size":
                # it had the shape of own rows; PyG takes it from x, to which the halo was added
                given[name] = None
        return bound.args, bound.kwargs

    def _after_call(self, module: Any, args: Any, kwargs: Any, out: Any) -> Any:
        # _before_call() raised before it knew the plan
        if not self._frames:
            return None
        frame = self._frames.pop()
        self._statistics.layer_ended()
        if out is None:  # it raised
            return None
        if not isinstance(out, Tensor):
            raise ConfigError(
                f"{type(module).__name__} returned a {type(out).__name__}: only layers that return "
                "one tensor run over a distributed graph (no return_attention_weights)"
            )
        return frame.level.put_back(out, self._num_own[frame.level.edge_type[2]])

    def _propagate(self, module: Any, inputs: Any) -> Any:
        edge_index, size, values = inputs
        frame = self._frames[-1]
        frame.calls += 1
        # own rows have changed: fetch those of the halo again
        if frame.calls > 1 and self._sequential is None:
            values = {**values, "x": self._append_halo_again(module, frame, values.get("x"))}
        if is_normalized(module):
            # all own rows' edges, not `edge_index`: the module may have added self-loops already
            edge_index, weights = self._norms.of(
                module, frame.plan.whole, frame.level, frame.weight, values["x"].dtype
            )
            values = {**values, "edge_weight": weights}
        self._statistics.edges(frame.plan, frame.level, edge_index)
        return edge_index, size, values

    def _propagate_rank_after_rank(
        self, module: Any, original: Any, edge_index: Any, size: Any = None, **values: Any
    ) -> Tensor:
        """Take the place of a layer's `propagate`, with one rank's rows after another's."""
        assert self._sequential is not None
        level = self._frames[-1].level
        edge_index, _, values = self._propagate(module, (edge_index, size, values))
        return self._sequential.propagate(module, original, level, edge_index, values)

    def _update_edges_of_halo(
        self, module: Any, original: Any, edge_index: Any, size: Any = None, **values: Any
    ) -> Any:
        # GATConv's scores, a number per head: a softmax needs those of all in-neighbours at once
        level = self._frames[-1].level
        for name, value in values.items():
            if isinstance(value, tuple):
                values[name] = level.extend(value[0]), value[1]
        return original(edge_index, size=size, **values)

    def _edge_update(self, module: Any, inputs: Any) -> None:
        frame = self._frames[-1]
        self._statistics.edges(frame.plan, frame.level, inputs[0])

    # -- parts -------------------------------------------------------------------------------------

    def _plan_of(self, module: Any, edge_index: Any) -> EdgePlan:
        plan = self._plans.get(id(edge_index))
        if plan is None:
            raise ConfigError(
                f"{type(module).__name__} got an edge_index that is not one of the graph's: give "
                "the model data.edge_index (data.edge_index_dict) as full_graph() made it; a model "
                "that changes its edges before a layer does not fit a distributed graph"
            )
        return plan

    def _hops_to_come(self, module: torch.nn.Module) -> int | None:
        """Return the maximum number of layers after this one; None: unknown."""
        if not self._narrow:
            return None
        # a layer that runs twice has two hops, of which units() counted one
        if module in self._ran:
            raise ConfigError(
                f"{type(module).__name__} runs twice in one forward, so the rows that `nodes` "
                "depend on are not known: leave `nodes` out"
            )
        self._ran.add(module)
        # Layers are counted as they run, not as they are listed: a model may list them in any
        # order.
        order = self._order.setdefault(self._units[module], len(self._order))
        return len(set(self._units.values())) - 1 - order

    def _check_loops(self, module: Any, plan: EdgePlan) -> None:
        src, _, dst = plan.edge_type
        if src != dst and getattr(module, "add_self_loops", False):
            raise ConfigError(
                f"{type(module).__name__} adds self-loops between nodes of {src!r} and {dst!r}: "
                "build it with add_self_loops=False"
            )

    def _append_halo(self, module: Any, level: Level, x: Any) -> Any:
        src, _, dst = level.edge_type
        if isinstance(x, Tensor):
            if src != dst:
                raise ConfigError(
                    f"{type(module).__name__} needs (x_src, x_dst) for {level.edge_type}"
                )
            self._check_rows(module, x, src)
            return level.extend(x) if self._sequential is None else x
        if x is None:
            return None
        x_src, x_dst = x
        self._check_rows(module, x_src, src)
        if x_dst is not None:
            self._check_rows(module, x_dst, dst)
            x_dst = level.cut(x_dst)
        return level.extend(x_src) if self._sequential is None else x_src, x_dst

    def _check_rows(self, module: Any, x: Tensor, node_type: str) -> None:
        # sending reads rows by position: another number of rows would give other nodes' rows
        if x.size(0) != self._num_own[node_type]:
            raise ConfigError(
                f"{type(module).__name__} got {x.size(0)} rows of {node_type!r}, of which this "
                f"rank has {self._num_own[node_type]}: give it data.x as full_graph() made it"
            )

    def _append_halo_again(self, module: Any, frame: _RunningModule, x: Any) -> Tensor:
        if not isinstance(x, Tensor) or frame.level.sources is not None:
            raise ConfigError(
                f"{type(module).__name__} propagates several times in one forward, in a way that "
                "does not fit a distributed graph"
            )
        return frame.level.extend(x[: frame.level.num_sources])


def _replace(module: Any, name: str, method: Any, stack: ExitStack) -> None:
    """Let ``method(module, original, ...)`` be called for a method, until ``stack`` ends."""
    original = getattr(module, name)
    # PyG sets methods on the instance, too, as for its explainers
    if name in vars(module):
        stack.callback(setattr, module, name, original)
    else:
        stack.callback(delattr, module, name)
    setattr(module, name, partial(method, module, original))


# --- training operations, made equal on all ranks -------------------------------------------------

_CHUNK = 1 << 20
"""Numbers drawn at a time: they are 64 bits wide."""


class WholeGraphStatistics(TorchFunctionMode):
    """Catches ``dropout`` and ``batch_norm`` in training; everything else passes.

    A mask's bits are a hash of (seed, forward, call of dropout in it, global id, column); for
    messages the id is that of the edge: source, target, and its number among their edges.

    Args:
        graph: This rank's part.
        seed: Seed of the masks.
        rows_missing: Rows are left out, so statistics over nodes are invalid.
    """

    def __init__(self, graph: LocalGraph, seed: int, *, rows_missing: bool) -> None:
        super().__init__()
        self._graph, self._seed, self._rows_missing = graph, seed, rows_missing
        # With types, one id stands for a node of each: the number of rows does not tell the type of
        # a tensor, so dropout is torch's own there.
        ids_by_type = list(graph.shares.own_ids.values())
        self._own_ids = ids_by_type[0] if len(ids_by_type) == 1 and len(graph.plans) == 1 else None
        self._forward = self._call = 0
        self._edges: tuple[EdgePlan, Level, Tensor] | None = None

    def begin(self) -> None:
        """Start a forward, which has its own masks."""
        self._forward, self._call, self._edges = self._forward + 1, 0, None

    def edges(self, plan: EdgePlan, level: Level, edge_index: Tensor) -> None:
        """Set the edges of the following messages."""
        self._edges = plan, level, edge_index

    def layer_ended(self) -> None:
        """Return to rows of nodes."""
        self._edges = None

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace the two functions."""
        kwargs = kwargs or {}
        if func is F.dropout and self._own_ids is not None:
            # torch takes the mode off while it handles a call: F.dropout inside is torch's
            return self._dropout(*args, **kwargs)
        if func is F.batch_norm:
            return self._batch_norm(*args, **kwargs)
        return func(*args, **kwargs)

    # -- dropout -----------------------------------------------------------------------------------

    def _dropout(
        self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0.0:
            return x
        keys = self._keys(x.size(0))
        self._call += 1
        # p=1 would divide by 0; torch draws nothing for it, and so needs no keys
        if keys is None or p == 1.0:
            return F.dropout(x, p, training, inplace)
        # below 2**62: it fits an int64, with keys of either sign
        salt = ((self._seed * 1_000_003 + self._forward) * 1_000_003 + self._call) % 2**62
        # a new tensor also with `inplace`: callers use the result
        kept = _keep_mask(_hash_keys(keys ^ salt), x[0].numel() if len(x) else 1, 1.0 - p)
        return x * kept.view_as(x).to(x.dtype) / (1.0 - p)

    def _keys(self, count: int) -> Tensor | None:
        """Return ``[count]`` int64, each row's key; None: rows of neither nodes nor edges."""
        assert self._own_ids is not None
        # inside of a layer: a tensor with a row per edge has messages
        if self._edges is not None and self._edges[2].size(1) == count:
            return self._dropout_keys_of_edges(*self._edges)
        if count == self._own_ids.numel():
            return _hash_keys(self._graph.data.n_id)
        return None

    def _dropout_keys_of_edges(self, plan: EdgePlan, level: Level, edge_index: Tensor) -> Tensor:
        n_id = self._graph.data.n_id
        ids = torch.cat(
            [n_id if level.sources is None else n_id[level.sources], self._halo(plan, level)]
        )
        # not symmetric: the reverse edge has another key
        keys = _hash_keys(_hash_keys(ids[edge_index[0]]) + ids[edge_index[1]])
        order = torch.argsort(keys, stable=True)
        ordered = keys[order]
        # Edges with the same two ends have one key. They are counted from 0 in canonical order,
        # which does not depend on ranks: all edges into a node are on its rank.
        first = torch.searchsorted(ordered, ordered)
        which = torch.empty_like(order)
        which[order] = torch.arange(order.numel(), device=order.device) - first
        return _hash_keys(keys + which)

    def _halo(self, plan: EdgePlan, level: Level) -> Tensor:
        if level.sources is None:
            return plan.halo.to(self._graph.data.n_id.device)
        return level.fetch(self._graph.data.n_id)

    # -- batch norm --------------------------------------------------------------------------------

    def _batch_norm(
        self,
        x: Tensor,
        mean: Tensor | None,
        var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if not training:
            return F.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
        if self._rows_missing:
            raise ConfigError(
                "BatchNorm in training needs all rows, of which nodes= leaves some out: call "
                "model.eval(), or leave nodes= out"
            )
        total, given = self._graph.exchange.total, x
        # As torch does: in float16 a count of nodes ends at 65,504, and sums lose their digits
        # long before.
        x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        # Three sums over ranks: squares around the mean lose no digits, unlike sums of squares
        # minus the square of the sum. All are part of the gradient graph.
        count = total(torch.tensor(float(x.size(0)), dtype=x.dtype, device=x.device))
        centre = total(x.sum(0)) / count
        spread = total((x - centre).square().sum(0)) / count
        with torch.no_grad():
            if mean is not None and var is not None:
                mean.lerp_(centre.to(mean.dtype), momentum)
                # torch keeps the unbiased variance for evaluation, and normalises by the biased one
                var.lerp_((spread * count / (count - 1)).to(var.dtype), momentum)
        out = (x - centre) * torch.rsqrt(spread + eps)
        out = out if weight is None else out * weight
        return (out if bias is None else out + bias).to(given.dtype)


def _hash_keys(keys: Tensor) -> Tensor:
    """Return a 64-bit hash of each key.

    Source:
        The finaliser of SplitMix64 (Steele, Lea, Flood 2014); int64 wraps as uint64 does, and a
        mask makes its shifts logical.
    """
    keys = keys + -7046029254386353131
    keys = (keys ^ ((keys >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    keys = (keys ^ ((keys >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return keys ^ ((keys >> 31) & 0x1FFFFFFFF)


def _keep_mask(keys: Tensor, width: int, keep: float) -> Tensor:
    """Return ``[n, width]`` bool, true with probability ``keep``."""
    # an odd factor: no two columns get the same number
    columns = torch.arange(width, device=keys.device) * 0x632BE59BD9B4E019
    # 24 bits of the hash: a probability is exact to 6e-8, like a float32
    limit = int(keep * (1 << 24))
    parts = [
        (_hash_keys(part[:, None] + columns) & 0xFFFFFF) < limit
        for part in keys.split(max(_CHUNK // max(width, 1), 1))
    ]
    return (
        torch.cat(parts) if parts else torch.empty((0, width), dtype=torch.bool, device=keys.device)
    )
