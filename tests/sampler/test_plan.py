"""What every batch is drawn by, and what goes with features of fewer bytes."""

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_EDGE_TYPE as EDGE
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.message import BatchTicket
from gigl_loader.sampler.plan import SamplingPlan, draw_key

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
