"""What every batch is drawn by, and what goes with features of fewer bytes."""

import dataclasses
import hashlib

import numpy as np

from gigl_loader.batch.message import NODE_FEATURES, SCALES, BatchTicket, key
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.dataset.schema import edge_type_str
from gigl_loader.sampler.plan import SamplingPlan, draw_key, quantization_scale_fields
from gigl_loader.testing import TinyGraph, as_worker_gets

PLAN = SamplingPlan(input_type=NODE, fanouts={EDGE: (2, 2)}, seed=7)


def _key(epoch: int = 0, batch: int = 0, hop: int = 0) -> int:
    return draw_key(PLAN, BatchTicket(0, 1, epoch, batch), hop, EDGE)


def test_keys_differ_in_everything_that_they_are_made_of() -> None:
    keys = {_key(e, b, h) for e in range(10) for b in range(10) for h in range(10)}
    assert len(keys) == 1000
    ticket = BatchTicket(0, 1, 0, 0)
    assert draw_key(PLAN, ticket, 0, ("a", "b", "c")) != draw_key(PLAN, ticket, 0, ("a", "b", "d"))
    assert _key() == draw_key(PLAN, BatchTicket(5, 9, 0, 0), 0, EDGE), (
        "stream and round are no input"
    )


def test_known_keys() -> None:
    """Worked out with hashlib alone: a change draws other batches, and needs a new draw_version."""
    text = edge_type_str(EDGE).encode()
    for epoch, batch, hop in ((0, 0, 0), (2**62, 5, 1 << 33)):
        numbers = b"".join(one.to_bytes(8, "little") for one in (7, epoch, batch, hop))
        digest = hashlib.blake2b(numbers + text, digest_size=8).digest()
        assert _key(epoch, batch, hop) == int.from_bytes(digest, "little")


def test_hops_are_those_of_the_fanouts() -> None:
    assert PLAN.num_hops == 2
    assert dataclasses.replace(PLAN, fanouts={}).num_hops == 0


def test_scales_go_with_features_that_are_in_the_batch() -> None:
    view = as_worker_gets(TinyGraph.random(8, 20, heterogeneous=True).dataset().view())
    scales = np.array([[0.5, 2.0], [1.0, -1.0]], np.float32)
    rows = dataclasses.replace(view.node_features["user"], scales=scales)
    view = dataclasses.replace(view, node_features={**view.node_features, "user": rows})
    sent = [key(NODE_FEATURES, name) for name in ("item", "user")]
    (found,) = quantization_scale_fields(view, sent)
    assert found.key == SCALES + "user.x"
    found.write(out := np.empty(found.shape, found.dtype))
    assert out.tolist() == scales.tolist()
    assert quantization_scale_fields(view, sent[:1]) == [], "a loader without features sends none"
