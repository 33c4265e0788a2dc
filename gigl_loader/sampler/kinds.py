"""The samplers of one thread: how they are built, and the fields that they return."""

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gigl_loader.dataset.view import PartitionView
from gigl_loader.errors import ConfigError
from gigl_loader.hooks import name_of, returned
from gigl_loader.memory.segments import Array
from gigl_loader.message import NODE, Field
from gigl_loader.sampler.neighbor import NeighborSampler
from gigl_loader.sampler.plan import Peers, Sampler, SampleRequest, SamplingPlan, scale_fields

_MESSAGE = "the fields of a message: Field objects, or pairs of a key and its values"


def load_sampler(
    view: PartitionView[Array], plan: SamplingPlan, peers: Peers | None,
    custom: tuple[str, dict[str, Any]] | None = None,
) -> Sampler:  # fmt: skip
    """Build the sampler of one thread.

    Args:
        view: The partition to read.
        plan: The sampling to do.
        peers: The workers of the other partitions.
        custom: Import path and keywords of its class; None: the k-hop neighbour sampler.
    """
    if custom is None:
        return NeighborSampler(view, plan, peers)
    path, keywords = custom
    module, _, name = path.rpartition(".")
    kind = getattr(importlib.import_module(module), name)
    sampler: Sampler | None = kind(view, plan, peers, **keywords)
    what = "a sampler: an object with a method sample(request)"
    found = returned(sampler, "the class or function of the sampler,", kind, what)
    if not callable(getattr(found, "sample", None)):
        raise ConfigError(f"{name_of(kind)} must return {what}; got {type(found).__name__}")
    return found


def sampled_fields(
    sampler: Sampler, request: SampleRequest, view: PartitionView[Array]
) -> list[Field]:
    """Return the fields of a batch, with the scales of quantized rows.

    Raises:
        ConfigError: The sampler returned something that is not a message.
    """
    found = returned(sampler.sample(request), "the sampler's method", sampler.sample, _MESSAGE)
    # A dict is an iterable, too, but of its keys alone.
    if isinstance(found, (str, Mapping)) or not isinstance(found, Iterable):
        raise ConfigError(
            f"the sampler's method {name_of(sampler.sample)} must return {_MESSAGE}, got "
            f"{type(found).__name__}" + ("; its items() are" if isinstance(found, Mapping) else "")
        )
    fields = [one if isinstance(one, Field) else _field_of(one, sampler) for one in found]
    keys = {one.key for one in fields}
    if not any(name == NODE or name.endswith(f".{NODE}") for name in keys):
        raise ConfigError(
            f"the sampler's method {name_of(sampler.sample)} returned no {NODE!r}, the nodes of "
            f"the batch; its fields are {sorted(keys)}"
        )
    return [*fields, *scale_fields(view, keys)]


def _field_of(pair: Any, sampler: Sampler) -> Field:
    """Return a field from a pair of its key and its values."""
    is_pair = isinstance(pair, Sequence) and len(pair) == 2 and isinstance(pair[0], str)
    field = Field.of(*pair) if is_pair and pair[1] is not None else None
    # numpy makes an array of objects from what has no numbers
    if field is None or field.dtype == "object":
        what = f"a field {pair[0]!r} with {pair[1]!r}" if is_pair else f"{type(pair).__name__}"
        raise ConfigError(
            f"the sampler's method {name_of(sampler.sample)} must return {_MESSAGE}, got {what} "
            "in it"
        )
    return field
