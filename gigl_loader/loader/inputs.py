"""What the user wants sampled, checked before anything starts."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE, DatasetSchema, NodeType
from gigl_loader.errors import ConfigError, WrongTypeError

NodeInput = (
    Tensor | tuple[NodeType, Tensor] | Mapping[int, Tensor] | tuple[NodeType, Mapping[int, Tensor]]
)
"""Seeds of a user: colocated the first two, by storage server the last two."""


def check_seeds(seeds: Any, num_nodes: int, name: str = "input_nodes") -> Tensor:
    """Return ``seeds`` if they are ``[n]`` int64 ids on the CPU, each in ``[0, num_nodes)``.

    Raises:
        WrongTypeError: Not a tensor.
        ConfigError: Wrong shape, dtype, device, or range; names the first offender.
    """
    if not isinstance(seeds, Tensor):
        raise WrongTypeError(f"{name} must be a tensor of node ids, got {type(seeds).__name__}")
    if seeds.dtype == torch.bool:
        raise ConfigError(f"{name} is a boolean mask: pass ids, {name}.nonzero().view(-1)")
    if seeds.dtype != torch.int64 or seeds.dim() != 1:
        raise ConfigError(
            f"{name} must be [n] int64, got {list(seeds.shape)} {seeds.dtype}: use .long().view(-1)"
        )
    if seeds.device.type != "cpu":
        raise ConfigError(f"{name} must be on the CPU, where sampling is, got {seeds.device}")
    wrong = (seeds < 0) | (seeds >= num_nodes)
    if bool(wrong.any()):
        place = int(wrong.nonzero()[0])
        raise ConfigError(
            f"{name}[{place}] = {int(seeds[place])} is no node id: ids are in [0, {num_nodes})"
        )
    return seeds.contiguous()


def typed_seeds(
    input_nodes: Any, schema: DatasetSchema, num_nodes: dict[NodeType, int]
) -> tuple[NodeType, Tensor]:
    """Return (node type, checked seeds) of colocated ``input_nodes``; the type is always given.

    Raises:
        ConfigError: The type is missing or unknown, or the input is a graph store's.
    """
    _refuse_remote(input_nodes)
    plain = schema.edge_types is None or schema.is_homogeneous_with_labeled_edge_type
    if isinstance(input_nodes, tuple):
        node_type, seeds = input_nodes
        if node_type not in num_nodes:
            raise ConfigError(
                f"input_nodes names node type {node_type!r}, the dataset has {sorted(num_nodes)}"
            )
    elif plain:
        node_type, seeds = DEFAULT_HOMOGENEOUS_NODE_TYPE, input_nodes
    else:
        raise ConfigError(
            "the graph is heterogeneous: pass input_nodes=(node_type, ids), with one of "
            f"{sorted(num_nodes)}"
        )
    return node_type, check_seeds(seeds, num_nodes[node_type])


def _refuse_remote(input_nodes: Any) -> None:
    inner = input_nodes[1] if isinstance(input_nodes, tuple) and len(input_nodes) == 2 else None
    if isinstance(input_nodes, Mapping) or isinstance(inner, Mapping):
        raise ConfigError(
            "input_nodes is by server, as for a graph store, but the dataset is local: pass a "
            "tensor or (node_type, tensor)"
        )


def typed_by_server(
    input_nodes: Any, schema: DatasetSchema, num_nodes: dict[NodeType, int]
) -> tuple[NodeType, dict[int, Tensor]]:
    """Return (node type, checked seeds by storage server) of a graph store's ``input_nodes``.

    Raises:
        ConfigError: The type is missing or unknown, or the input is a colocated loader's.
    """
    plain = schema.edge_types is None or schema.is_homogeneous_with_labeled_edge_type
    node_type, by_server = DEFAULT_HOMOGENEOUS_NODE_TYPE, input_nodes
    if isinstance(input_nodes, tuple):
        node_type, by_server = input_nodes
    elif not plain:
        raise ConfigError(
            "the graph is heterogeneous: pass input_nodes=(node_type, {server_rank: ids}), with "
            f"one of {sorted(num_nodes)}"
        )
    if not isinstance(by_server, Mapping):
        raise ConfigError(
            "with a graph store, input_nodes is {server_rank: ids}, as "
            f"RemoteDistDataset.fetch_node_ids returns it, got {type(by_server).__name__}"
        )
    if node_type not in num_nodes:
        raise ConfigError(
            f"input_nodes names node type {node_type!r}, the graph has {sorted(num_nodes)}"
        )
    return node_type, {
        server: check_seeds(ids, num_nodes[node_type], f"input_nodes[{server}]")
        for server, ids in by_server.items()
    }


def check_servers(by_server: Mapping[int, Any], servers: range) -> None:
    """Raise `ConfigError` where the input names a storage server that there is not."""
    unknown = [server for server in by_server if server not in servers]
    if unknown:
        raise ConfigError(f"the input names storage servers {unknown}; there are {list(servers)}")


def local_share(seeds: Tensor, local_rank: int, local_world_size: int) -> Tensor:
    """Return the block of ``seeds`` of one process of a machine; the blocks concatenate to all.

    Source:
        ``torch.tensor_split``: the first ``len(seeds) % local_world_size`` blocks are one longer.
    """
    return seeds.tensor_split(local_world_size)[local_rank].contiguous()
