"""What a worker is told, and how patient it therefore is."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from gigl_loader.transport import SILENCE_S
from gigl_loader.workers.setup import SeedInput, WorkerSetup


def _setup(*, replaceable: bool, rpc_timeout_s: float) -> WorkerSetup:
    unread = {field.name: None for field in dataclasses.fields(WorkerSetup)}
    how = {"replaceable": replaceable, "rpc_timeout_s": rpc_timeout_s}
    return WorkerSetup(**{**unread, **how})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("replaceable", "rpc_timeout_s", "expected"),
    [
        (True, 10 * SILENCE_S, 10 * SILENCE_S),
        (True, SILENCE_S / 2, SILENCE_S),
        (False, 10 * SILENCE_S, SILENCE_S),
    ],
)
def test_one_that_may_be_replaced_is_waited_for_as_long_as_an_answer_may_take(
    replaceable: bool, rpc_timeout_s: float, expected: float
) -> None:
    assert _setup(replaceable=replaceable, rpc_timeout_s=rpc_timeout_s).patience_s == expected


@pytest.mark.parametrize("shape", [(0,), (7,), (7, 2)])
def test_the_length_of_an_input_is_that_of_its_seeds(shape: tuple[int, ...]) -> None:
    seeds: SeedInput[Any] = SeedInput(np.zeros(shape, np.int64), {"label": np.zeros(3)})
    found = len(seeds)
    assert (found, type(found)) == (shape[0], int)
