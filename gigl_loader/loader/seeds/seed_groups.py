"""``shuffle="groups"``: which group each seed of a loader is in, checked before anything starts."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gigl_loader.batch.message import SeedColumns, columns_of
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.lookup import DistFeature
from gigl_loader.dataset.partition.frames import FRAME
from gigl_loader.dataset.schema import (
    COMMUNITY,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    DatasetSchema,
    NodeType,
)
from gigl_loader.errors import ConfigError, WrongTypeError
from gigl_loader.loader.seeds.seed_input import read_tensor
from gigl_loader.runtime.glt_classes import NodeSamplerInput
from gigl_loader.sources.held_seeds import joined

logger = logging.getLogger(__name__)

GroupIds = Tensor | NDArray[Any] | Sequence[int]
"""``[num_nodes]`` integers, the group of each node of a type."""
SeedGroups = str | GroupIds | Mapping[NodeType, str | GroupIds]
"""A node attribute, or the ids themselves; or one of these by node type."""


@dataclass(frozen=True)
class GroupSource:
    """Where the groups of a loader's seeds are: an attribute, ids, or what partitioning wrote."""

    node_type: NodeType
    """Type of the seeds, or of their sources."""
    attribute: str | None = None
    """The node attribute with the groups."""
    ids: Tensor | None = None
    """``[num_nodes]`` int64, the groups as the user gave them."""
    with_parts: bool = False
    """Nodes of different parts are in different groups."""

    @classmethod
    def of(
        cls,
        given: SeedGroups | None,
        input_type: NodeType | None,
        schema: DatasetSchema,
        num_nodes: Mapping[NodeType, int],
    ) -> "GroupSource":
        """Return the source that a user names.

        Args:
            given: The user's ``seed_groups``. None: the parts, and communities if there are any.
            input_type: Type of the seeds; None: the graph is homogeneous.
            schema: Of the dataset.
            num_nodes: Nodes of each type.

        Raises:
            ConfigError: Ids of the wrong length or dtype, a name that is no attribute, or none for
                the type of the seeds.
        """
        node_type = input_type or DEFAULT_HOMOGENEOUS_NODE_TYPE
        attributes = [a for a in schema.node_attributes.get(node_type, ()) if a != FRAME]
        name = "seed_groups"
        if isinstance(given, Mapping):
            if node_type not in given or not given.keys() <= num_nodes.keys():
                raise ConfigError(
                    f"seed_groups is by node type, for {sorted(given)}: the seeds are nodes "
                    f"{node_type!r}, and the types are {sorted(num_nodes)}"
                )
            name, given = f"seed_groups[{node_type!r}]", given[node_type]
        if given is None:
            community = COMMUNITY if node_type in schema.types_with_communities else None
            return cls(node_type, community, with_parts=True)
        if not isinstance(given, str):
            return cls(node_type, ids=read_group_ids(given, num_nodes[node_type], name))
        if given not in attributes:
            raise ConfigError(
                f"{name}={given!r} is no attribute of nodes {node_type!r}, which have "
                f"{list(attributes)}: name one of these, or give the group of each node"
            )
        return cls(node_type, given)

    @property
    def told(self) -> str:
        """What all ranks have to name alike, as they read groups together."""
        return "ids" if self.ids is not None else f"{self.attribute} {self.with_parts}"

    def check_attribute(self, data: DistDataset) -> None:
        """Raise `ConfigError` if the attribute of a local dataset cannot be groups."""
        if self.attribute is not None:
            values = data.view().node_attributes[self.node_type, self.attribute].values
            _as_groups(values, len(values), repr(self.attribute))

    def add_to(
        self, inputs: Sequence[NodeSamplerInput], dataset: Any, groups_per_batch: int
    ) -> None:
        """Give seeds their column of groups. Collective, except over a graph store.

        Args:
            inputs: A loader's seeds; with a graph store by server. Groups are numbered over all.
            dataset: A ``DistDataset`` or a ``RemoteDistDataset``.
            groups_per_batch: Groups that are mixed at a time.

        Raises:
            ConfigError: The attribute has no groups, or seeds that the servers hold have changed.
            PeerError: A rank ended, or a storage server.
        """
        held = joined(inputs)
        seeds = (
            torch.cat([server_input.node.cpu() for server_input in inputs])
            if held is None
            else dataset.fetch_ids_of(held)
        )
        count, groups = _numbered(self._groups_of(seeds, dataset))
        if count <= groups_per_batch:
            logger.warning(
                'shuffle="groups" with groups_per_batch=%d does what shuffle=True does, since the '
                "seeds are in %d groups: give seed_groups=, or partition with communities=N",
                groups_per_batch,
                count,
            )
        columns = groups.split([len(server_input) for server_input in inputs])
        for server_input, column in zip(inputs, columns, strict=True):
            group = SeedColumns(group=column.contiguous())
            server_input.extra = {**columns_of(server_input), **group.named()}

    def _groups_of(self, seeds: Tensor, dataset: Any) -> Tensor:
        """Return the group of each seed; ids may leave gaps."""
        if self.ids is not None:
            return self.ids[seeds]
        groups = torch.zeros_like(seeds)
        if self.attribute is not None:
            name = (self.node_type, self.attribute)
            rows = DistFeature(dataset, "node_attributes").get(seeds, name)
            groups = _as_groups(rows, len(seeds), repr(self.attribute))
        if not self.with_parts:
            return groups
        # Communities have dense ids, so that the product fits.
        count, parts = _numbered(_parts_of(seeds, dataset, self.node_type))
        return groups * count + parts


def read_group_ids(given: Any, num_nodes: int, name: str) -> Tensor:
    """Return ``given`` as ``[num_nodes]`` int64.

    Args:
        given: The user's value.
        num_nodes: Nodes of the type.
        name: Its name in errors.

    Raises:
        WrongTypeError: Neither a tensor nor an array or a sequence of numbers.
        ConfigError: Not one integer for each node.
    """
    if not isinstance(given, Tensor | np.ndarray | Sequence):
        raise WrongTypeError(
            f"{name} must name a node attribute or be the group of each node, as integers, got "
            f"{type(given).__name__}"
        )
    return _as_groups(read_tensor(given, name, "ids of groups"), num_nodes, name)


def _as_groups(values: Tensor, count: int, name: str) -> Tensor:
    """Return ``[count]`` int64; raise `ConfigError` if there is not one integer for each node."""
    kind = values.dtype
    if kind == torch.bool or kind.is_floating_point or kind.is_complex:
        raise ConfigError(f"{name} must have integers, the ids of groups, got {kind}")
    if tuple(values.shape) not in ((count,), (count, 1)):
        raise ConfigError(
            f"{name} must have one group for each of {count} nodes, got shape {list(values.shape)}"
        )
    return values.reshape(-1).cpu().long()


def _numbered(groups: Tensor) -> tuple[int, Tensor]:
    """Return (number of groups, the number of each seed's one: from 0 on, in the order of ids)."""
    ids, numbers = torch.unique(groups, return_inverse=True)
    return ids.numel(), numbers


def _parts_of(seeds: Tensor, dataset: Any, node_type: NodeType) -> Tensor:
    """Return the partition that owns each seed."""
    if isinstance(dataset, DistDataset):
        book = dataset.view().node_books.get(node_type)
        return torch.zeros_like(seeds) if book is None else book.owner(seeds)
    # GLT's book, or a table of owners: both are read by ids.
    return cast("Tensor", dataset.fetch_node_partition_book(node_type)[seeds])
