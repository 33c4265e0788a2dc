import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.examples._run import number_after, run_example

pytestmark = pytest.mark.multiprocess


def test_two_ranks_train_from_parquet_and_name_what_they_predict(tmp_path: Path) -> None:
    printed = run_example("train_tables.py", "--epochs", "6", f"--out={tmp_path}", ranks=2)
    assert number_after("test accuracy: ", printed) > 0.9
    assert number_after("edge cut ", printed) < 25
    names = [
        name
        for rank in range(2)
        for name in pq.read_table(tmp_path / f"predictions-{rank}.parquet")["name"].to_pylist()
    ]
    assert len(set(names)) == len(names) == 360
    assert all(re.fullmatch(r"digit_\d{4}", name) for name in names)
