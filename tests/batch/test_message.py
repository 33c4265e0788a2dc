"""Keys and fields of messages."""

import numpy as np
import pytest
import torch

from gigl_loader.batch import message
from gigl_loader.batch.message import (
    BatchCounts,
    BatchTicket,
    Field,
    Received,
    key,
    label_column,
    stays_on_host,
)
from gigl_loader.dataset.schema import NEGATIVE, POSITIVE

WRITES = ("author", "writes", "paper")


def test_keys_carry_their_type() -> None:
    assert key(message.NODE_FEATURES) == "x"
    assert key(message.NODE_FEATURES, "paper") == "paper.x"
    assert key(message.EDGE_INDEX, WRITES) == "author__writes__paper.edge_index"


def test_label_columns_differ_by_sign_and_type() -> None:
    signs = (POSITIVE, NEGATIVE)
    names = {label_column(sign, edge) for sign in signs for edge in (WRITES, WRITES[::-1])}
    assert len(names) == 4
    assert "positive:author__writes__paper" in names


@pytest.mark.parametrize(
    ("name", "stays"),
    [
        ("num_sampled_nodes", True),
        ("paper.num_sampled_nodes", True),
        ("author__writes__paper.num_sampled_edges", True),
        ("#IS_HETERO", True),
        ("#LABELS.counts.positive:a__b__c", True),
        ("#LABELS.links.positive:a__b__c", False),
        ("x", False),
        ("paper.n_id", False),
        ("batch", False),
    ],
)
def test_what_collating_reads_stays_on_the_host(name: str, stays: bool) -> None:
    assert stays_on_host(name) is stays


@pytest.mark.parametrize("values", [[[1, 2], [3, 4]], np.float32(2.5), np.empty((0, 3), np.int16)])
def test_a_field_writes_its_values(values: object) -> None:
    array = np.asarray(values)
    field = Field.of("y", values)
    assert (field.key, field.dtype, field.shape) == ("y", array.dtype.name, array.shape)
    out = np.full(field.shape, 9, field.dtype)
    field.write(out)
    assert np.array_equal(out, array)


def test_rows_on_the_device_go_before_those_of_the_host() -> None:
    class Lent:
        def lent(self) -> dict[str, torch.Tensor]:
            return {"x": torch.ones(1)}

    ticket = BatchTicket(0, 0, 0, 0)
    host = {"x": torch.zeros(1), "n_id": torch.tensor([7])}
    assert Received(ticket, host, {}).whole() is host
    found = Received(ticket, host, {}, Lent()).whole()
    assert (found["x"].item(), found["n_id"].item()) == (1.0, 7)
    assert host["x"].item() == 0.0, "the message stays as it came"


SECOND = 10**9


def _measured(ended_s: float, sample_s: float = 0.0, gather_s: float = 0.0, **more: object) -> dict:
    ended = round(ended_s * SECOND)
    return {"sample_s": sample_s, "gather_s": gather_s, "ended_ns": ended, **more}


def test_sums_over_all_workers_and_positions() -> None:
    counts = BatchCounts()
    counts.count(_measured(1, 0.25, 0.5, seeds=3, nbytes=100), "a", 0)
    counts.count(_measured(2, 0.5, 0.125, seeds=4, nbytes=20), "b", 1)
    counts.count({}, "c", 1)  # of a worker that measures nothing
    assert (counts.batches, counts.seeds, counts.nbytes) == (3, 7, 120)
    assert (counts.sample_s, counts.gather_s) == (0.75, 0.625)


def test_a_worker_is_busy_once_with_batches_that_overlap() -> None:
    counts = BatchCounts()
    counts.count(_measured(10, 1.0, 1.0), "a", 0)  # from 8 to 10
    counts.count(_measured(11, 3.0), "a", 0)  # from 8 to 11
    counts.count(_measured(10.5, 2.0), "a", 0)  # within; its message came later
    counts.count(_measured(20, 1.0), "a", 0)
    counts.count(_measured(11, 3.0), "b", 0)
    assert counts.busy_s == pytest.approx({"a": 2 + 1 + 0 + 1, "b": 3})
    assert counts.busy_until == {"a": 20.0, "b": 11.0}


def test_a_worker_whose_clock_is_set_back_is_busy_all_the_same() -> None:
    """Seen in code: no time counted until the clock had caught up, an hour later."""
    counts = BatchCounts()
    hour = 3600.0
    for ended, expected in ((2 * hour, 1.0), (hour, 2.0), (hour + 2, 3.0), (2 * hour, 4.0)):
        counts.count(_measured(ended, 1.0), "a", 0)
        assert counts.busy_s["a"] == pytest.approx(expected)


def test_each_batch_tells_the_restarts_of_its_position() -> None:
    counts = BatchCounts()
    for position, restarts in ((0, 1), (1, 4), (0, 3), (0, 2)):
        counts.count({"restarts": restarts}, "a", position)
    counts.count({}, "a", 1)
    assert counts.restarts == {0: 3, 1: 4}
