"""Random negatives from a second loader, and those of the batch itself."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.loader.ablp import in_batch_negative_mask, zip_with_negatives


class _Epochs:
    """A loader whose batches say their epoch."""

    def __init__(self, *batches):
        self.batches, self.epoch = batches, -1

    def __iter__(self):
        self.epoch += 1
        return iter([(self.epoch, batch) for batch in self.batches])


def test_negatives_start_again_as_often_as_needed() -> None:
    negatives = _Epochs("x", "y")
    found = list(zip_with_negatives("abcde", negatives))
    assert found == [
        ("a", (0, "x")),
        ("b", (0, "y")),
        ("c", (1, "x")),
        ("d", (1, "y")),
        ("e", (2, "x")),
    ]
    assert list(zip_with_negatives("", negatives)) == []
    with pytest.raises(UsageError, match="no batches"):
        list(zip_with_negatives("a", _Epochs()))


rows = st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=6)


@given(rows, st.lists(st.integers(0, 9), max_size=8), st.booleans())
def test_every_candidate_but_known_positives(labels, candidates, same_type) -> None:
    positives = {i: torch.tensor(row, dtype=torch.int64) for i, row in enumerate(labels)}
    pairs = [(i, label) for i, row in enumerate(labels) for label in row]
    index = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2).t()
    chosen = torch.tensor(candidates, dtype=torch.int64)
    mask = in_batch_negative_mask(positives, chosen, same_type=same_type)
    assert mask.dtype == torch.bool
    assert mask.shape == (len(labels), len(candidates))
    assert mask.tolist() == [
        [c not in row and not (same_type and c == anchor) for c in candidates]
        for anchor, row in enumerate(labels)
    ]
    other = in_batch_negative_mask(index, chosen, len(labels), same_type=same_type)
    assert torch.equal(mask, other)


def test_a_tensor_of_labels_needs_the_batch_size() -> None:
    with pytest.raises(ConfigError, match="num_anchors"):
        in_batch_negative_mask(torch.empty((2, 0), dtype=torch.int64), torch.tensor([0]))
