import re

import pytest
from _run import run_example

pytestmark = pytest.mark.multiprocess


def test_it_learns_from_a_database() -> None:
    printed = run_example("train_from_sqlite.py", "--epochs", "5")
    assert float(re.search(r"test accuracy: (\d\.\d+)", printed)[1]) > 0.9
