"""Keys and fields of messages."""

import numpy as np
import pytest
import torch

from gigl_loader import message
from gigl_loader.message import BatchTicket, Field, Received, key, label_column, stays_on_host

WRITES = ("author", "writes", "paper")


def test_keys_carry_their_type() -> None:
    assert key(message.NODE_FEATURES) == "x"
    assert key(message.NODE_FEATURES, "paper") == "paper.x"
    assert key(message.EDGE_INDEX, WRITES) == "author__writes__paper.edge_index"


def test_label_columns_differ_by_sign_and_type() -> None:
    signs = (message.POSITIVE, message.NEGATIVE)
    names = {label_column(sign, edge) for sign in signs for edge in (WRITES, WRITES[::-1])}
    assert len(names) == 4
    assert "positive:author__writes__paper" in names


@pytest.mark.parametrize(
    ("name", "stays"),
    [
        ("num_sampled_nodes", True), ("paper.num_sampled_nodes", True),
        ("author__writes__paper.num_sampled_edges", True), ("#IS_HETERO", True),
        ("#LABELS.counts.positive:a__b__c", True), ("#LABELS.links.positive:a__b__c", False),
        ("x", False), ("paper.n_id", False), ("batch", False),
    ],
)  # fmt: skip
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
