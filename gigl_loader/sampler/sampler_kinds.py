"""The kinds of samplers: how they are built, what is known of them, and what they return."""

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from gigl_loader.batch.message import NODE, Field
from gigl_loader.dataset.partition.partition_view import PartitionView
from gigl_loader.dataset.schema import EdgeType, NodeType
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.memory.segments import Array
from gigl_loader.runtime.user_functions import name_of, returned
from gigl_loader.sampler.plan import (
    Peers,
    Sampler,
    SampleRequest,
    SamplingPlan,
    quantization_scale_fields,
)
from gigl_loader.sampler.roots import Roots

_MESSAGE = "the fields of a message: Field objects, or pairs of a key and its values"


@dataclass(frozen=True)
class SamplerKind:
    """A sampler: how the threads that sample build it, and what a loader has to know of it.

    Path and keywords are all that is known of a user's class. Each sampler of this package states
    its kind beside its class.
    """

    path: str
    """Import path of its class, or of a function that returns one."""
    keywords: dict[str, Any] = field(default_factory=dict)
    """Arguments besides view, plan and peers; plain values, as they travel to servers."""
    roots: Callable[..., Roots] | None = None
    """Makes the first nodes of its batches, as ``roots(reader, plan, **keywords)``; None: they are
    the seeds."""
    merges_roots: bool = False
    """Whether a node is a root once, however often it is a seed."""
    can_pad: bool = False
    """Whether fan-outs bound its batches, which then grow hop by hop from their roots."""
    kernels: tuple[str, ...] = ()
    """Names of the kernels that it needs beside those of its plan, in `supervisor.KERNELS`."""

    def with_keywords(self, keywords: dict[str, Any]) -> Self:
        """Return this sampler with other keywords."""
        return replace(self, keywords=keywords)

    @property
    def name(self) -> str:
        """Name of its class or function."""
        return self.path.rpartition(".")[2]

    @property
    def is_own(self) -> bool:
        """Whether its class is one of this package."""
        return self.path.startswith("gigl_loader.")

    @property
    def edge_type(self) -> EdgeType | None:
        """Type of its seeds if they are edges; None: they are nodes."""
        return None

    @property
    def has_triplets(self) -> bool:
        """Whether each seed edge has negatives of its own."""
        return False

    @property
    def supervision(self) -> tuple[EdgeType, ...]:
        """Edge types whose labels are roots, besides the seeds."""
        return ()

    def root_types(self, input_type: NodeType) -> set[NodeType]:
        """Return the node types of roots: of the seeds, and of what labels or edges lead to."""
        edge_type = self.edge_type
        leads = self.supervision if edge_type is None else (*self.supervision, edge_type)
        return {input_type, *(dst for _, _, dst in leads)}

    def most_roots(
        self,
        input_type: NodeType,
        num_seeds: int,
        known: Collection[EdgeType],
        widths: Mapping[str, int],
    ) -> dict[NodeType, int]:
        """Return the most roots of a batch, by type.

        Args:
            input_type: Node type of the seeds.
            num_seeds: Seeds of the batch.
            known: Edge types of the graph.
            widths: Values per seed in the further columns of the input, by their names.

        Raises:
            ConfigError: They are not bounded.
        """
        return {input_type: num_seeds}

    def build(self, view: PartitionView[Array], plan: SamplingPlan, peers: Peers | None) -> Sampler:
        """Return the sampler of one thread.

        Args:
            view: The partition to read.
            plan: The sampling to do.
            peers: The workers of the other partitions.

        Raises:
            ConfigError: The class or function returned something that is not a sampler.
        """
        module, _, name = self.path.rpartition(".")
        make = getattr(importlib.import_module(module), name)
        sampler: Sampler | None = make(view, plan, peers, **self.keywords)
        what = "a sampler: an object with a method sample(request)"
        built = returned(sampler, "the class or function of the sampler,", make, what)
        if not callable(getattr(built, "sample", None)):
            raise ConfigError(f"{name_of(make)} must return {what}; got {type(built).__name__}")
        return built


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
    if NODE not in keys and not any(name.endswith(f".{NODE}") for name in keys):
        raise ConfigError(
            f"the sampler's method {name_of(sampler.sample)} returned no {NODE!r}, the nodes of "
            f"the batch; its fields are {sorted(keys)}"
        )
    return [*fields, *quantization_scale_fields(view, keys)]


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
