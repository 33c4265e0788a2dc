"""The options that a state names: what decides the content of batches, beside seeds and order.

The record is a dict of short texts, so that a state is safe to ``torch.save`` and reads well in an
error. An option that is off or at its default is left out: a later version with one more option
still takes a state that was saved without it.
"""

import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import CodeType
from typing import Any

import numpy as np
from torch import Tensor

from gigl_loader.dataset.identity import content_digest
from gigl_loader.errors import ConfigError
from gigl_loader.sampler.options import (
    CustomSamplerOptions,
    ExpansionOptions,
    KHopNeighborSamplerOptions,
    SamplerOptions,
    SourceOptions,
)

logger = logging.getLogger(__name__)

OPTIONS = "options"
"""Entry of a state with the record."""
_OF_CONFIG = ("num_neighbors", "with_edge", "with_weight", "edge_dir")
_LONGEST = 200
"""Characters of a text; a longer one ends in a digest of it."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def recorded_options(
    config: Any,
    sampler_options: SamplerOptions | None,
    options: SourceOptions,
    functions: Mapping[str, Callable[[Any], Any] | None],
    others: Mapping[str, Any],
    graph: str | None,
) -> dict[str, str]:
    """Return the record of a loader's options.

    Args:
        config: GLT's ``SamplingConfig``.
        sampler_options: The sampler of the workers; None: the loader's own.
        options: Options of the epochs.
        functions: The user's functions by the keyword that took them; each is known by its name.
        others: Further options of one kind of loader.
        graph: From `graph_text`.
    """
    values: dict[str, Any] = {name: getattr(config, name) for name in _OF_CONFIG}
    values |= {"replace": options.replace, "weight_attr": options.weight_attr}
    # Of the addresses among a store's keywords, those of another machine are no other store.
    store = options.feature_store
    values["feature_store"] = store and [store.class_path, store.attr_name, store.node_types]
    plain = ExpansionOptions()
    for field in fields(ExpansionOptions):
        value = getattr(options.expansion, field.name)
        values[field.name] = None if value == getattr(plain, field.name) else value
    if isinstance(sampler_options, CustomSamplerOptions):
        values["sampler_options"] = [sampler_options.class_path, sampler_options.keywords]
    elif not isinstance(sampler_options, KHopNeighborSamplerOptions):  # its fanout is above
        values["sampler_options"] = sampler_options
    values |= {**functions, **others, "graph": graph}
    on = {name: value for name, value in values.items() if value is not None and value is not False}
    return {name: _short(_text(value)) for name, value in on.items()}


def graph_text(dataset: Any) -> str | None:
    """Return the identity of a dataset's graph; None: it has none, as one of GLT's.

    The digest alone where there is one: of a graph in memory it is the same however the graph is
    cut into partitions, as are the batches.

    Args:
        dataset: A ``DistDataset``, or a ``RemoteDistDataset``, which asks a server.
    """
    if hasattr(dataset, "fetch_graph_identity"):
        asked: str = dataset.fetch_graph_identity()
        run, _, digest = asked.partition(" ")
        return digest or run
    identity = getattr(dataset, "graph_identity", None)
    return None if identity is None else (identity.digest or identity.run)


def differing_options(
    state: dict[str, Any], current: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """Return by name what the state has and what the loader has, where these differ.

    A state without the record is of an earlier version: nothing is compared, which is logged.

    Raises:
        ConfigError: The record is damaged.
    """
    saved = state.get(OPTIONS)
    if saved is None:
        logger.warning(
            "the state has no record of the options that decide batches, as an earlier version "
            "saved it: whether this loader has the same ones is not compared"
        )
        return {}
    if not isinstance(saved, dict) or not all(
        isinstance(name, str) and isinstance(text, str) for name, text in saved.items()
    ):
        raise ConfigError(
            "not a loader state: options must be a dict of texts by name, got "
            f"{_short(repr(saved))}; give the result of a state_dict()"
        )
    return {
        name: (_short(saved.get(name, "not set")), current.get(name, "not set"))
        for name in sorted({*saved, *current})
        if saved.get(name) != current.get(name)
    }


def _text(value: Any) -> str:
    """Return a text of a value that is the same in another process."""
    if isinstance(value, Tensor | np.ndarray):
        return f"{value.dtype}{list(value.shape)} {content_digest(value)}"
    if isinstance(value, Mapping):
        items = sorted((_text(key), _text(item)) for key, item in value.items())
        return "{" + ", ".join(f"{key}: {item}" for key, item in items) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(_text, value))) + "}"
    # A list and a tuple of the same values are the same option.
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, str):
        return value
    name, code = getattr(value, "__qualname__", None), getattr(value, "__code__", None)
    if isinstance(name, str):  # a function, a method or a class
        text = f"{getattr(value, '__module__', '')}.{name}"
        if name.endswith("<lambda>") and isinstance(code, CodeType):
            text += f" {hashlib.blake2b(_code(code).encode(), digest_size=6).hexdigest()}"
    else:
        text = " ".join(repr(value).split())
    # The main module has another name in processes that it started.
    return _ADDRESS.sub("", text).replace("__mp_main__", "__main__")


def _code(code: CodeType) -> str:
    """Return a text of what a function does, without where it stands: lambdas share their name."""
    constants = [_code(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _short(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return f"{text[: _LONGEST - 20]}... {digest}"
