"""Seeds that stay on storage servers: each server reads its own.

The servers of a producer tell each other what they read, so that each can sample any batch. Compute
processes do not have the ids. With ``shuffle="groups"`` they fetch them once, to find the groups of
the seeds, which they send to the servers as a column.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from gigl_loader.dataset.schema import NodeType
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.glt_classes import NodeSamplerInput

_SPLITS = {"train": "train", "valid": "val", "val": "val", "test": "test"}
"""Our name of each split, by GLT's and ours."""


class RemoteSamplerInput:
    """Base of the seeds that a storage server reads itself."""

    input_type: NodeType | None
    """Their type; None: the graph is homogeneous."""


@dataclass(frozen=True)
class RemoteNodeSplitSamplerInput(RemoteSamplerInput):
    """The nodes of a split that a storage server owns.

    Args:
        split: ``"train"``, ``"val"`` or ``"test"``; or GLT's ``Split``.
        input_type: Type of the nodes; None: the graph is homogeneous.

    Raises:
        ConfigError: There is no such split.
    """

    split: Any
    input_type: NodeType | None = None

    def __post_init__(self) -> None:
        name = getattr(self.split, "value", self.split)  # GLT's enumeration, or a name
        if name not in _SPLITS:
            raise ConfigError(f"split must be one of {sorted(_SPLITS)}, got {self.split!r}")
        object.__setattr__(self, "split", _SPLITS[name])


@dataclass(frozen=True)
class RemoteNodePathSamplerInput(RemoteSamplerInput):
    """The nodes in a file that a storage server reads.

    Args:
        node_path: A file on the server's machine, with ``[n]`` int64 global ids by ``torch.save``.
        input_type: Type of the nodes; None: the graph is homogeneous.
    """

    node_path: str
    input_type: NodeType | None = None


@dataclass(frozen=True, kw_only=True)
class HeldPart:
    """The seeds of one storage server."""

    server: int
    count: int
    """How many they are."""
    split: str | None = None
    path: str | None = None
    """The file with them; None, with ``split``: there are none."""

    def check_same(self, ids: Tensor, reader: int) -> None:
        """Raise `ConfigError` if ``ids``, which a server reads now, are not as many as counted."""
        if ids.numel() != self.count:
            raise ConfigError(
                f"storage server {reader} has {ids.numel()} seeds of {self}: they have changed "
                "since they were counted; build the loader again"
            )


class HeldSeeds(NodeSamplerInput):
    """A sampler's input that the servers hold: as long as it is there, with no id here.

    Its columns, in ``extra``, are here: they have a row for each seed, part by part.
    """

    def __init__(self, parts: Sequence[HeldPart], input_type: NodeType | None) -> None:
        super().__init__(torch.empty(0, dtype=torch.int64, device="cpu"), input_type)
        self.parts = tuple(parts)
        self.extra: dict[str, Tensor] = {}

    @override
    def __len__(self) -> int:
        return sum(part.count for part in self.parts)


def joined(inputs: Sequence[NodeSamplerInput]) -> HeldSeeds | None:
    """Return the inputs of all servers as one, if they are held there; None: they are here.

    Columns are left out; `gigl_loader.graph_store.client.producers.concatenated` joins those.
    """
    held = [seeds for seeds in inputs if isinstance(seeds, HeldSeeds)]
    if not held:
        return None
    return HeldSeeds([part for seeds in held for part in seeds.parts], held[0].input_type)


def told_parts(sampler_input: NodeSamplerInput) -> bytes:
    """Return for a digest what the servers hold of an input; empty: nothing."""
    return repr(sampler_input.parts).encode() if isinstance(sampler_input, HeldSeeds) else b""
