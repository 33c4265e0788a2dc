from pathlib import Path

import pytest

from tests.examples._run import EXAMPLES, number_after, run_example, torchrun_example

pytestmark = pytest.mark.multiprocess


def _check(printed: str, figure: Path) -> str:
    last = printed.strip().splitlines()[-1]
    assert number_after("plan that knows the rule ", last) == 1
    assert number_after("transformer ", last) > 0.95
    assert number_after("GNN ", last) < 0.65
    assert figure.read_bytes().startswith(b"\x89PNG")
    return last


@pytest.mark.longest
def test_two_ranks_learn_the_rule_from_partitions_and_from_a_store(tmp_path: Path) -> None:
    figure = tmp_path / "accuracy.png"
    how = "--epochs=4", f"--figure={figure}"
    colocated = _check(torchrun_example("transformer.py", *how, ranks=2), figure)
    figure.unlink()
    # one graph, one order of seeds on each rank: the same batches, so the same models
    assert _check(run_example("transformer.py", "--store", *how), figure) == colocated


def test_one_process_learns_the_rule(tmp_path: Path) -> None:
    figure = tmp_path / "accuracy.png"
    _check(run_example("transformer.py", "--epochs=4", f"--figure={figure}"), figure)
    assert len((EXAMPLES / "transformer.py").read_text().splitlines()) < 120
