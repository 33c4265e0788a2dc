"""The inputs of all storage servers as one, which is what a loader of a graph store samples."""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gigl_loader._glt import NodeSamplerInput
from gigl_loader.errors import ConfigError


def concatenated(inputs: Sequence[NodeSamplerInput]) -> NodeSamplerInput:
    """Return the inputs of all servers as one, on the CPU; further columns go with the seeds.

    Columns of labels may differ in width: they are padded with -1.

    Raises:
        ConfigError: There is none, or they are of several types.
    """
    if not inputs:
        raise ConfigError("sampler_input is an empty list: give one input per storage server")
    # a loader's seeds are of one type: positions in the whole input say nothing of a type
    types = {one.input_type for one in inputs}
    if len(types) > 1:
        raise ConfigError(f"the inputs of the storage servers are of several types: {types}")
    whole = NodeSamplerInput(torch.cat([one.node.cpu() for one in inputs]), types.pop())
    # GLT's own class has no such attribute
    extras = [getattr(one, "extra", None) or {} for one in inputs]
    # sorted below: all ranks that share a producer have to come to the same digest
    names = {name for extra in extras for name in extra}
    whole.extra = {
        name: _stacked([extra[name].cpu() for extra in extras if name in extra])
        for name in sorted(names)
    }
    for name, column in whole.extra.items():
        # Counted in rows: a server without seeds of this rank may leave its empty columns out.
        if column.size(0) != len(whole):
            raise ConfigError(f"column {name!r} of the input is missing for some servers' seeds")
    return whole


def _stacked(columns: list[Tensor]) -> Tensor:
    if columns[0].dim() < 2:
        return torch.cat(columns)
    width = max(column.size(1) for column in columns)
    # -1 is no node: what is padded so already within a server's table has the same meaning
    padded = [torch.nn.functional.pad(c, (0, width - c.size(1)), value=-1) for c in columns]
    return torch.cat(padded)


def digest_of(sampler_input: NodeSamplerInput, config: Any, active: Sequence[int]) -> str:
    """Return what has to be equal where producers are shared."""
    # fast, as input may be GBs; nothing secret depends on it
    digest = hashlib.blake2b(repr((config, list(active), sampler_input.input_type)).encode())
    # no copy; columns need one, as hashlib takes a matrix as bytes only
    digest.update(sampler_input.node.contiguous().numpy().data)
    for name, column in sampler_input.extra.items():
        digest.update(name.encode() + column.contiguous().numpy().tobytes())
    return digest.hexdigest()
