"""`Tokens`: a sequence of nodes for each seed of a batch, as graph transformers read it.

::

    tokens.type, row, hop, ...   [seeds, max_tokens]   seed | token | token | padding
    batch[type].x[row]           the row of a token, once in the batch however often it is a token
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor

from gigl_loader.batch.collate import batch_types
from gigl_loader.batch.message import TOKENS, SampleMessage, is_heterogeneous
from gigl_loader.dataset.partition.frames import FRAME, is_frame
from gigl_loader.dataset.schema import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    DatasetSchema,
    EdgeType,
    NodeType,
    is_label_edge_type,
    reverse_edge_type,
)
from gigl_loader.errors import ConfigError, WrongTypeError

MaskKind = Literal["row", "type", "neighbour"]
_DAY_S = 86_400.0
_RELGT_MASK_HOP, _RELGT_MASK_TIME = -1, -1.0


@dataclass(kw_only=True, repr=False)
class Tokens:
    """Sequences of nodes, one for each seed of a batch.

    With ``layout="padded"`` a field is ``[B, L]``, with ``"varlen"`` ``[T]``, sequence after
    sequence. Sequences are in the order of seeds; in a link loader of sources, destinations, then
    sources and destinations of negatives; in an ABLP loader of anchors, then label nodes, by
    supervision edge type, positives before negatives, anchor after anchor. The first token is the
    seed itself: it has the row of a seed, as one that comes twice in a batch has one row.
    """

    type: Tensor
    """int32: index in ``node_types``, the same in every batch; -1 in padding."""
    row: Tensor
    """int32: the token's place among the nodes of its type in the batch; -1 in padding."""
    hop: Tensor
    """int8: hops from the seed in its own tree; of PPR nodes fewest steps of the push. -1 in
    padding."""
    time: Tensor
    """float32: time of the seed less that of the token, in units of the time attribute (seconds in
    a graph made of a database), at least 0; 0 without times and in padding."""
    has_time: Tensor
    """bool: nodes of the token's type have times; False in padding."""
    score: Tensor
    """float32: PPR score; 0 without PPR and in padding."""
    mask: Tensor
    """bool: a token is here."""
    length: Tensor
    """``[B]`` int32: tokens of each sequence, repeats included."""
    node_types: tuple[NodeType, ...]
    """Node types of the graph, sorted."""
    edge_types: tuple[EdgeType, ...]
    """Edge types of a batch, sorted: the relations of ``pair``."""
    max_tokens: int
    """L."""
    num_tokens: int
    """T: tokens of all sequences, repeats included."""
    num_nodes: tuple[int, ...]
    """Nodes of the whole graph, by ``node_types``."""
    cu_seqlens: Tensor | None = None
    """``[B + 1]`` int32, where sequences begin and end in ``[T]``; None if padded."""
    pair: Tensor | None = None
    """``[E, 4]`` int32: (sequence, query, key, relation) of the edges drawn between two tokens of a
    seed, each once; query (the node an edge was drawn for) and key (its neighbour) are places
    within the sequence. Grouped by relation, then ascending. None unless asked for."""
    walk: Tensor | None = None
    """``[..., walk_length]`` float32: the probability that a walk from the seed is at the token
    after 1, 2... steps; a step goes to one of the tokens that an edge was drawn to or from, evenly.
    0 in padding. None unless asked for."""
    degree: Tensor | None = None
    """int32: tokens of the sequence that an edge was drawn to or from; 0 in padding. None unless
    asked for."""
    _n_id: dict[NodeType, Tensor] = field(default_factory=dict)
    _input_id: Tensor | None = None
    _y: Tensor | None = None
    _tf: dict[NodeType, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return sizes alone: a batch prints it."""
        return (
            f"Tokens(sequences={self.num_sequences}, max_tokens={self.max_tokens}, "
            f"layout={'varlen' if self.cu_seqlens is not None else 'padded'})"
        )

    # -- where it is ------------------------------------------------------------------------------

    def apply(self, function: Callable[[Tensor], Tensor]) -> "Tokens":
        """Return the same with ``function`` of each tensor."""
        changed: dict[str, Any] = {}
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, Tensor):
                changed[one.name] = function(value)
        for of_types in ("_n_id", "_tf"):  # a ``TensorFrame`` has the same methods
            given: dict[NodeType, Any] = getattr(self, of_types)
            changed[of_types] = {name: function(value) for name, value in given.items()}
        return replace(self, **changed)

    def to(self, *args: Any, **keywords: Any) -> "Tokens":
        """Return the same on another device, as ``Tensor.to``."""
        return self.apply(lambda tensor: tensor.to(*args, **keywords))

    def cpu(self) -> "Tokens":
        """Return the same on the CPU."""
        return self.to("cpu")

    def cuda(self, *args: Any, **keywords: Any) -> "Tokens":
        """Return the same on a CUDA device."""
        return self.apply(lambda tensor: tensor.cuda(*args, **keywords))

    def pin_memory(self) -> "Tokens":
        """Return the same in pinned memory."""
        return self.apply(lambda tensor: tensor.pin_memory())

    @property
    def num_sequences(self) -> int:
        """B."""
        return self.length.size(0)

    def padded(self) -> "Tokens":
        """Return the same with ``layout="padded"``."""
        if self.cu_seqlens is None:
            return self
        places = torch.arange(self.max_tokens, device=self.length.device)
        mask = places < self.length[:, None]
        changed: dict[str, Any] = {
            name: _spread(getattr(self, name), mask, fill)
            for name, fill in _PADDING.items()
            if getattr(self, name) is not None
        }
        return replace(self, **changed, mask=mask, cu_seqlens=None)

    # -- rows -------------------------------------------------------------------------------------

    def gather(self, x_by_type: Mapping[NodeType, Tensor] | Tensor) -> Tensor:
        """Return the row of each token: ``[B, L, d]``, 0 in padding; varlen a nested tensor.

        Args:
            x_by_type: ``[num_nodes, d]`` rows of the batch by node type, ``batch.x_dict`` or what a
                layer made of it, with one ``d``; of a graph with one type, a tensor will do. A
                token of a type that is left out has zeros.

        Raises:
            ConfigError: Widths differ, or a type is unknown.
        """
        rows = self._rows(x_by_type)
        if self.cu_seqlens is None:
            return rows
        return torch.nested.nested_tensor_from_jagged(rows, self.cu_seqlens.long())

    def _rows(self, x_by_type: Mapping[NodeType, Tensor] | Tensor) -> Tensor:
        given = {self.node_types[0]: x_by_type} if isinstance(x_by_type, Tensor) else x_by_type
        if not isinstance(given, Mapping):
            raise WrongTypeError(f"tokens need rows by node type, got {type(given).__name__}")
        unknown = [name for name in given if name not in self.node_types]
        if unknown or not given or (isinstance(x_by_type, Tensor) and len(self.node_types) > 1):
            raise ConfigError(
                f"tokens need rows by node type, of {list(self.node_types)}; got "
                f"{'one tensor' if isinstance(x_by_type, Tensor) else list(given)}"
            )
        widths = {name: tuple(x.shape[1:]) for name, x in given.items()}
        if len(set(widths.values())) > 1:
            raise ConfigError(
                f"tokens need rows of one width, got {widths}: project each type first"
            )
        # Row 0 is of zeros, for padding and types without rows. Nothing waits for the device.
        some = next(iter(given.values()))
        parts, starts, at = [some.new_zeros(1, *some.shape[1:])], [], 1
        for name in self.node_types:
            starts.append(at if name in given else -1)
            if name in given:
                parts.append(given[name])
                at += given[name].size(0)
        begin = torch.tensor(starts, device="cpu").to(self.row.device, non_blocking=True)
        begin = begin[self.type.long().clamp(min=0)]
        place = torch.where(self.mask & (begin >= 0), begin + self.row, 0)
        return torch.cat(parts)[place]

    # -- forms of other libraries -----------------------------------------------------------------

    def as_gigl(
        self,
        x_by_type: Mapping[NodeType, Tensor] | Tensor,
        *,
        anchor_bias: Sequence[str] | None = None,
        token_input: Sequence[str] | None = None,
        relations: Sequence[EdgeType] | None = None,
    ) -> tuple[Tensor, Tensor, dict[str, Any]]:
        """Return what GiGL's ``heterodata_to_graph_transformer_input`` returns.

        Args:
            x_by_type: As for `gather`; for GiGL's encoder rows that are already projected.
            anchor_bias: Names of values of each token, ``[B, L, number]``: ``"hop_distance"``,
                ``"ppr_weight"``, ``"time"`` or ``"degree"``. None: no such entry.
            token_input: The same, as a dict of ``[B, L, 1]``.
            relations: Edge types in the order of their numbers; pairs of others are left out. None:
                ``edge_types``.

        Returns:
            Sequences ``[B, L, d]``; bool ``[B, L]``, where there is a token; and a dict of
            ``anchor_bias``, ``pairwise_bias`` (None), ``pairwise_relation_indices`` (``[E, 4]``
            int64, None without pairs), ``pairwise_nonmissing_indices`` (None), ``token_input``.

        Raises:
            ConfigError: A name is unknown, or there are no pairs for ``relations``.
        """
        tokens = self.padded()
        bias = [tokens._value(name) for name in anchor_bias or ()]
        inputs = {name: tokens._value(name)[..., None] for name in token_input or ()}
        return (
            tokens._rows(x_by_type),
            tokens.mask,
            {
                "anchor_bias": torch.stack(bias, -1) if bias else None,
                "pairwise_bias": None,
                "pairwise_relation_indices": tokens._pairs_of(relations),
                "pairwise_nonmissing_indices": None,
                "token_input": inputs or None,
            },
        )

    def _value(self, name: str) -> Tensor:
        if name == "hop_distance":
            return torch.where(self.mask, self.hop, 0).float()
        if name == "ppr_weight":  # GiGL drops the seed's edge to itself
            others = torch.arange(self.mask.size(1), device=self.mask.device) > 0
            return torch.where(others, self.score, 0)
        found = getattr(self, name) if name in ("time", "degree") else None
        if found is None:
            raise ConfigError(
                f"tokens have no {name!r}: there are hop_distance, ppr_weight, time, and degree "
                "with TokenOptions(with_degree=True)"
            )
        value: Tensor = found
        return value.float()

    def _pairs_of(self, relations: Sequence[EdgeType] | None) -> Tensor | None:
        if relations is None:
            return None if self.pair is None else self.pair.long()
        pair = self._needed_pairs().long()
        found = [
            pair[pair[:, 3] == self.edge_types.index(name)]
            for name in relations
            if name in self.edge_types
        ]
        numbers = [n for n, name in enumerate(relations) if name in self.edge_types]
        for number, part in zip(numbers, found, strict=True):
            part[:, 3] = number
        return torch.cat([pair[:0], *found])

    def _needed_pairs(self) -> Tensor:
        if self.pair is None:
            raise ConfigError("this needs the pairs of tokens: TokenOptions(pairs=True)")
        return self.pair

    def as_relgt(self, frames: Mapping[NodeType, Any] | None = None) -> dict[str, Any]:
        """Return what the ``collate`` of RelGT's tokens returns, for its model.

        Its times are days: the time attribute has to be in seconds.

        Args:
            frames: Rows of the batch by node type, as PyTorch Frame has them; those of its tokens
                become ``grouped_tfs``. None: the batch's own ``tf``; without these that is empty.

        Raises:
            ConfigError: A sequence has padding, which the model would read as tokens; or there is
                one sequence, on which it fails; or there are no pairs.
        """
        pair, size = self._needed_pairs().long(), self.max_tokens
        if self.num_sequences == 1:
            raise ConfigError(
                "RelGT's model fails on a batch of one seed: give a larger batch_size, and "
                "drop_last=True"
            )
        if self.cu_seqlens is not None or not bool(self.mask.all()):
            raise ConfigError(
                "RelGT's model has no mask, so padding would be read as tokens: give "
                'TokenOptions(fill="repeat")'
            )
        given = self._tf if frames is None else frames
        of, flat, row = self.type.long(), self.type.reshape(-1), self.row.long()
        ids = torch.zeros_like(row)
        grouped_tfs, grouped_indices = {}, {}
        for number, name in enumerate(self.node_types):
            at = (flat == number).nonzero().squeeze(-1)
            if not at.numel():
                continue
            rows = row.view(-1)[at]
            ids.view(-1)[at] = self._n_id[name][rows]
            grouped_indices[number] = at.tolist()
            if frames is not None or name in given:
                grouped_tfs[number] = given[name][rows]
        before = torch.tensor(self.num_nodes, device="cpu").cumsum(0).to(of.device)
        before = before - torch.tensor(self.num_nodes, device="cpu").to(of.device)
        days = torch.where(self.has_time, self.time / _DAY_S, 0)
        days[:, 0] = 0
        ends = torch.stack([pair[:, 0] * size + pair[:, 2], pair[:, 0] * size + pair[:, 1]])
        both = torch.unique(torch.cat([ends, ends.flip(0)], 1), dim=1)
        sequence = torch.arange(self.num_sequences, device=of.device).repeat_interleave(size)
        return {
            "neighbor_types": of,
            "neighbor_indices": ids,
            "neighbor_hops": self.hop.long(),
            "neighbor_times": days,
            "labels": None if self._y is None else self._y[row[:, 0]].double(),
            "node_indices": before[of[:, 0]] + ids[:, 0],
            "grouped_tfs": grouped_tfs,
            "grouped_indices": grouped_indices,
            "flat_batch_idx": sequence.tolist(),
            "flat_nbr_idx": list(range(size)) * self.num_sequences,
            "global_idx": self._input_id,
            "edge_index": both,
            "batch": sequence,
        }

    # -- masks of attention -----------------------------------------------------------------------

    def mask_mod(self, kind: MaskKind) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Return a ``mask_mod`` of FlexAttention: whether a query attends to a key.

        Args:
            kind: ``"row"``: tokens of the same node; ``"type"``: of the same node type;
                ``"neighbour"``: an edge was drawn for the query from the key, see `pair`. Both are
                tokens of one sequence. A query without a key attends to itself, padding too.

        Raises:
            ConfigError: The kind is unknown, or there are no pairs for ``"neighbour"``.
        """
        if kind == "neighbour":
            return self._neighbour_mask()
        if kind not in ("row", "type"):
            raise ConfigError(f'kind must be "row", "type" or "neighbour", got {kind!r}')
        of = self.type.long()
        code = of if kind == "type" else of + self.row.long() * len(self.node_types)
        code, real, sequence = code.view(-1), self.mask.view(-1), self._sequence()
        width = self.max_tokens if self.cu_seqlens is None else 0

        def attends(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            query, key_ = b * width + q, b * width + k
            same = (code[query] == code[key_]) & (sequence[query] == sequence[key_])
            return (same & real[query] & real[key_]) | (q == k)

        return attends

    def _neighbour_mask(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        pair, size = self._needed_pairs().long(), self.max_tokens
        dense = torch.zeros(self.num_sequences, size, size, dtype=torch.bool, device=pair.device)
        dense[pair[:, 0], pair[:, 1], pair[:, 2]] = True
        alone = ~dense.any(-1)
        dense |= torch.diag_embed(alone)
        if self.cu_seqlens is None:
            return lambda b, h, q, k: dense[b, q, k]
        sequence = self._sequence()
        place = torch.arange(sequence.numel(), device=pair.device) - self.cu_seqlens[sequence]

        def attends(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return (sequence[q] == sequence[k]) & dense[sequence[q], place[q], place[k]]

        return attends

    def _sequence(self) -> Tensor:
        """Return the sequence of each place."""
        numbers = torch.arange(self.num_sequences, device=self.length.device)
        if self.cu_seqlens is None:
            return numbers.repeat_interleave(self.max_tokens)
        return numbers.repeat_interleave(self.length.long(), output_size=self.row.numel())

    def block_mask(self, kind: MaskKind, **keywords: Any) -> Any:
        """Return FlexAttention's block mask for `mask_mod`.

        Args:
            kind: As for `mask_mod`.
            keywords: Further ones of ``create_block_mask``, such as ``BLOCK_SIZE``.
        """
        from torch.nn.attention.flex_attention import create_block_mask  # slow to import

        size = self.max_tokens if self.cu_seqlens is None else self.row.numel()
        sequences = self.num_sequences if self.cu_seqlens is None else None
        device = str(self.length.device)
        return create_block_mask(
            self.mask_mod(kind), sequences, None, size, size, device=device, **keywords
        )


_PADDING: dict[str, Any] = {
    "type": -1,
    "row": -1,
    "hop": -1,
    "time": 0,
    "has_time": False,
    "score": 0,
    "walk": 0,
    "degree": 0,
}
"""Fields with a value for each token, and their values in padding."""


def _spread(values: Tensor, mask: Tensor, fill: Any) -> Tensor:
    """Return ``values`` of all tokens at their places in ``mask``, and ``fill`` elsewhere."""
    shape = (*mask.shape, *values.shape[1:])
    if values.size(0) == mask.numel():  # every sequence is full
        return values.reshape(shape)
    places = mask.view(*mask.shape, *[1] * (values.dim() - 1)).expand(shape)
    return values.new_full(shape, fill).masked_scatter(places, values)  # waits for no count


def tokens_of(
    message: SampleMessage,
    batch: Any,
    how: Any,
    schema: DatasetSchema,
    edge_dir: str,
    input_type: NodeType | None,
) -> Tokens:
    """Return the tokens of a message.

    Args:
        message: From a sampler; on the device of the batch.
        batch: Made of it, without tokens.
        how: ``ExpansionOptions``, with tokens.
        schema: Types and widths of the dataset.
        edge_dir: Edge direction of the dataset.
        input_type: Type of the seeds; None: they are not of one type.

    Raises:
        ConfigError: The message has no tokens.
    """
    if TOKENS + "row" not in message:
        raise ConfigError(
            "the batch has no tokens, as its sampler or producer makes none: leave tokens= out, or "
            "sample with this package's own"
        )
    row, length = message[TOKENS + "row"], message[TOKENS + "length"]
    counts, timed = message[TOKENS + "types"].tolist()
    zeros = torch.zeros(row.shape, device=row.device)
    hop = message[TOKENS + "hop"]
    of = message[TOKENS + "type"].int() if TOKENS + "type" in message else torch.zeros_like(row)
    has_time = torch.zeros_like(row, dtype=torch.bool)
    ends = torch.zeros(length.size(0) + 1, dtype=torch.int32, device=row.device)
    ends[1:] = length.cumsum(0)
    node_types: list[NodeType] = [DEFAULT_HOMOGENEOUS_NODE_TYPE]
    edge_types: list[EdgeType] = [DEFAULT_HOMOGENEOUS_EDGE_TYPE]
    typed = is_heterogeneous(message)
    if typed:
        node_types, _ = batch_types(message, schema, edge_dir)
        walked = [name for name in schema.edge_types or () if not is_label_edge_type(name)]
        edge_types = [reverse_edge_type(e) for e in walked] if edge_dir == "out" else walked
    stores = {name: batch[name] if typed else batch for name in node_types}
    time = zeros
    if TOKENS + "until" in message:
        until = message[TOKENS + "until"].repeat_interleave(length.long(), output_size=row.size(0))
        for number, store in enumerate(stores.values()):
            if timed[number]:
                here = of == number
                own = store[how.time_attr].reshape(-1)
                age = until - (own[torch.where(here, row, 0).long()] if own.numel() else 0)
                # a seed may be later than its own time: then nothing is known of it yet
                age = torch.where(hop == 0, age.clamp(min=0), age).float()
                time, has_time = torch.where(here, age, time), has_time | here
    of_seeds = stores.get(input_type or node_types[0], {})
    tokens = Tokens(
        type=of,
        row=row,
        hop=hop,
        time=time,
        has_time=has_time,
        score=message.get(TOKENS + "score", zeros),
        mask=torch.ones_like(row, dtype=torch.bool),
        length=length,
        node_types=tuple(node_types),
        edge_types=tuple(sorted(edge_types)),
        max_tokens=how.tokens.max_tokens,
        num_nodes=tuple(counts),
        cu_seqlens=ends,
        pair=message.get(TOKENS + "pair"),
        walk=message.get(TOKENS + "walk"),
        degree=message.get(TOKENS + "degree"),
        num_tokens=row.size(0),
        _n_id={name: store.n_id for name, store in stores.items()},
        _input_id=of_seeds.get("input_id"),
        _y=of_seeds.get("y"),
        _tf={name: store[FRAME] for name, store in stores.items() if is_frame(store.get(FRAME))},
    )
    return tokens.padded() if how.tokens.layout == "padded" else tokens
