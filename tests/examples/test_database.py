import importlib.util

import pytest

from tests.examples._run import number_after, run_example

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.skipif(
        not importlib.util.find_spec("torch_frame"), reason="pytorch-frame is not installed"
    ),
]


def test_a_query_is_learnt_from_a_file_of_duckdb() -> None:
    printed = run_example("database.py", "--epochs", "2")
    assert number_after("epoch 1: validation accuracy: ", printed) > 0.95
