import pytest

from tests.examples._run import number_after, run_example

pytestmark = pytest.mark.multiprocess


def test_it_learns_from_a_database() -> None:
    printed = run_example("train_from_sqlite.py", "--epochs", "5")
    assert number_after("test accuracy: ", printed) > 0.9
