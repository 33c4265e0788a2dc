"""What requests for one producer must have in common, as digests."""

import hashlib
from collections.abc import Sequence
from typing import Any

from gigl_loader.batch.message import columns_of
from gigl_loader.graph_store.wire.requests import ProducerRequest
from gigl_loader.runtime.glt_classes import NodeSamplerInput
from gigl_loader.sources.held_seeds import told_parts


def terms_of(
    sampler_input: NodeSamplerInput, config: Any, sampler_options: Any, request: ProducerRequest
) -> dict[str, str]:
    """Return what all requests for a producer must have in common, by name for an error."""
    said = {
        "compute ranks": request.client_ranks,
        "sampling config": config,
        "sampler options": sampler_options,
        "options": request.source_options,
        "shard": (request.shard, request.num_shards, request.servers.ranges),
    }
    return {
        "input": digest_of(sampler_input, None, ()),
        **{name: hashlib.blake2b(repr(value).encode()).hexdigest() for name, value in said.items()},
    }


def digest_of(sampler_input: NodeSamplerInput, config: Any, active: Sequence[int]) -> str:
    """Return a digest of the values that must be equal if producers are shared."""
    # a fast hash, as input may be GBs and nothing secret depends on it
    digest = hashlib.blake2b(repr((config, list(active), sampler_input.input_type)).encode())
    # no copy; columns need one, as hashlib takes a matrix only as bytes
    digest.update(sampler_input.node.contiguous().numpy().data)
    digest.update(told_parts(sampler_input))
    for name, column in columns_of(sampler_input).items():
        digest.update(name.encode() + column.contiguous().numpy().tobytes())
    return digest.hexdigest()
