"""Whether a model takes padded batches: nothing of dead nodes and edges may reach real ones."""

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from gigl_loader.batch.padding import EDGE_MASK, NODE_MASK
from gigl_loader.errors import ConfigError

_IDS = ("n_id", "e_id")
_OTHER = 1000.0
"""Value of dead features in the second call: large beside most others, and known to float16."""
_RELATIVE, _ABSOLUTE = 1e-4, 1e-5
"""Tolerances: on a GPU sums have no fixed order, so that two equal calls differ a little."""


def check_padding(model: Callable[[Any], Any], batch: Data | HeteroData) -> None:
    """Make sure that a model gives real nodes the same outputs, whatever is in dead places.

    Layers that see all nodes of a batch do not: ``BatchNorm`` in training, norms of a graph,
    pooling without ``batch``. Call this once before training, with the model in the mode of
    training. It is called twice, as a copy, with equal random numbers: with the batch, and with
    other features and ids of dead nodes and edges.

    Args:
        model: A module, or a function, that takes a batch. A function should leave the states of
            modules as they are.
        batch: A batch of a loader with ``pad=``, on the device of the model.

    Raises:
        ConfigError: Real outputs changed; the message names the first layer whose outputs did. Or
            the batch is not padded.
    """
    masks = [
        store[name] for store in batch.stores for name in (NODE_MASK, EDGE_MASK) if name in store
    ]
    if not masks:
        raise ConfigError("check_padding takes a batch of a loader with pad=, and got another one")
    device = masks[0].device
    own, other = _layers(model, batch, device), _layers(model, _with_other_dead(batch), device)
    for at, ((name, output), (_, changed)) in enumerate(zip(own, other, strict=True)):
        pairs = zip(_tensors(output), _tensors(changed), strict=True)
        if any(_differ(*pair, masks, is_last=at == len(own) - 1) for pair in pairs):
            raise ConfigError(
                f"this model cannot take padding: dead nodes and edges change what {name} gives "
                "for real ones; give that layer the real rows alone, x[batch.pad_node_mask], or "
                "leave it or pad= out"
            )


def _layers(model: Callable[[Any], Any], batch: Any, device: torch.device) -> list[tuple[str, Any]]:
    """Return (name, output) of each layer in the order in which they end; the model is last."""
    outputs: list[tuple[str, Any]] = []

    def note(name: str) -> Callable[..., None]:
        return lambda layer, given, output: outputs.append(
            (f"the layer {name!r} ({type(layer).__name__})", output)
        )

    # with the copy inside: older releases of PyG draw numbers to make one
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.no_grad():
        trial = copy.deepcopy(model)  # statistics that a layer keeps stay those of the model
        if isinstance(trial, nn.Module):
            for name, layer in trial.named_modules():
                if name:
                    layer.register_forward_hook(note(name))
        output = trial(batch)
    return [*outputs, ("the model", output)]


def _with_other_dead(batch: Any) -> Any:
    """Return a copy with other features, and ids of real ones, at dead places."""
    copied = copy.copy(batch)
    for store in copied.stores:
        for name, value in list(store.items()):
            mask = _mask_of(store, name, value)
            if mask is None or not (value.is_floating_point() or name in _IDS):
                continue
            changed = value.clone()
            changed[~mask] = value.max() if name in _IDS else _OTHER
            store[name] = changed
    return copied


def _mask_of(store: Any, name: str, value: Any) -> Tensor | None:
    """Return the mask of an attribute with a row for each node or edge of a store."""
    if not isinstance(value, Tensor) or not value.numel():
        return None
    for mask, is_of in ((NODE_MASK, "is_node_attr"), (EDGE_MASK, "is_edge_attr")):
        if mask in store and value.size(0) == store[mask].numel() and getattr(store, is_of)(name):
            return cast("Tensor", store[mask])
    return None


def _tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors of an output that are no ids: one, or several by type or place."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, dict | list | tuple):
        for part in output.values() if isinstance(output, dict) else output:
            yield from _tensors(part)


def _differ(output: Tensor, other: Tensor, masks: Iterable[Tensor], *, is_last: bool) -> bool:
    rows = output.size(0) if output.dim() else 0
    # Real rows come first. If nodes and edges are equally many, those that both have are compared.
    real = min((int(mask.sum()) for mask in masks if mask.numel() == rows), default=None)
    if real is None and not is_last:
        return False  # what convolutions have for messages, and for their loops
    return not torch.allclose(
        output[:real] if output.dim() else output,
        other[:real] if output.dim() else other,
        rtol=_RELATIVE,
        atol=_ABSOLUTE,
        equal_nan=True,
    )
