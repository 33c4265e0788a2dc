"""Keywords with a typo are refused with the name that was meant."""

import inspect
from collections.abc import Callable

import pytest

from gigl_loader import DistDataset, EdgeTable, NodeTable, WrongTypeError


@pytest.mark.parametrize(
    ("function", "typo", "answer"),
    [
        (NodeTable, "feature", r"NodeTable.__init__\(\) .* 'feature'; did you mean 'features'\?"),
        (NodeTable, "labels", r"'labels'; did you mean 'label'\?"),
        (NodeTable, "qq", r"'qq'; there are source, delta, version, .*, partition$"),
        (EdgeTable, "wieght", r"EdgeTable.__init__\(\) .* 'wieght'; did you mean 'weight'\?"),
        (DistDataset.load, "mmapp", r"DistDataset.load\(\) .* 'mmapp'; did you mean 'mmap'\?"),
        (DistDataset.load, "partition_index", r"did you mean 'partition_idx'\?"),
    ],
)
def test_a_typo_is_answered(function: Callable[..., object], typo: str, answer: str) -> None:
    with pytest.raises(WrongTypeError, match=answer):
        function("a", **{typo: 1})


def test_signatures_stay() -> None:
    assert list(inspect.signature(NodeTable).parameters)[:3] == ["source", "delta", "version"]
    assert "mmap" in inspect.signature(DistDataset.load).parameters
