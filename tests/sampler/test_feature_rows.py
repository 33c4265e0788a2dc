"""Rows of a store of the user's: which are asked for, what is kept, what is refused."""

from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.errors import ConfigError
from gigl_loader.sampler.options import FeatureStoreOptions
from gigl_loader.sampler.rows.row_exchange import FeatureRows, RecentRows
from gigl_loader.testing import TinyGraph, as_worker_gets


def test_the_least_recent_rows_go_first() -> None:
    asked: list[list[int]] = []

    def ask(ids: Any) -> Any:
        asked.append(ids.tolist())
        return np.stack([ids, -ids], 1)

    rows = RecentRows(4, np.empty((1, 2), np.int64))
    for ids in ([3, 1, 3], [1, 2], [7, 8], [1, 2, 7, 8], [9], [1, 2, 7, 8], list(range(10)), [0]):
        found = rows.take(np.array(ids), ask)
        assert found.tolist() == [[i, -i] for i in ids]
    # 3 makes room for 8, then 1 for 9 and 9, being the latest but 2, 7 and 8, for nobody but 1
    assert asked[:5] == [[1, 3], [2], [7, 8], [9], [1]]
    assert sorted(asked[5]) == [0, 3, 4, 5, 6, 9]
    assert rows.take(np.empty(0, np.int64), ask).shape == (0, 2)
    none = RecentRows(1, np.empty((1, 2), np.int64))
    assert none.take(np.array([4, 5, 6]), ask).tolist() == [[4, -4], [5, -5], [6, -6]]


class Store:
    """Row i of a group is ``[i, length of its name]``, given in the way that it is told to."""

    asked: ClassVar[list[tuple[Any, str, list[int]]]] = []

    def __init__(self, gives: str = "rows") -> None:
        self._gives = gives

    def get_tensor(
        self, *, group_name: Any, attr_name: str, index: torch.Tensor, convert_type: bool
    ) -> Any:
        assert convert_type, "a store of arrays gives tensors, too"
        self.asked.append((group_name, attr_name, index.tolist()))
        rows = torch.stack([index, torch.full_like(index, len(group_name or ""))], 1).float()
        if self._gives == "strided":
            return rows.t().contiguous().t().requires_grad_()
        first = {"nothing": None, "number": torch.tensor(3.0), "more": torch.zeros(9, 2)}
        if self._gives in first:
            return first[self._gives]
        later = {"wider": torch.zeros(len(index), 3), "doubles": rows.double()}
        return later[self._gives] if self._gives in later and len(index) > 1 else rows


def rows_of(gives: str = "rows", *, hetero: bool = False, **options: Any) -> FeatureRows:
    Store.asked.clear()
    view = as_worker_gets(TinyGraph.random(30, 20, heterogeneous=hetero).dataset().view())
    view.node_features.clear()
    return FeatureRows(FeatureStoreOptions(f"{__name__}.Store", {"gives": gives}, **options), view)


@pytest.mark.parametrize("gives", ["rows", "strided"])
def test_rows_come_by_id_as_contiguous_arrays(gives: str) -> None:
    rows = rows_of(gives, attr_name="emb")
    assert Store.asked == [(None, "emb", [0])], "one row says what all look like"
    assert NODE in rows
    assert "user" not in rows
    found = rows.fetch(NODE, np.array([5, 2, 5]))
    assert found.tolist() == [[5, 0], [2, 0], [5, 0]]
    assert found.flags.c_contiguous
    assert Store.asked[1:] == [(None, "emb", [2, 5])]
    assert rows.fetch(NODE, np.empty(0, np.int64)).shape == (0, 2)
    assert len(Store.asked) == 2


def test_types_are_groups_each_with_its_own_share_of_the_memory() -> None:
    rows = rows_of(hetero=True, cache_bytes=2 * 3 * 8)  # 3 rows of each of the two types
    assert [group for group, *_ in Store.asked] == ["item", "user"]
    for node_type, width in (("item", 4), ("user", 4)):
        for ids in ([1, 2, 3], [1, 2, 3], [4], [2, 3, 4], [1]):
            found = rows.fetch(node_type, np.array(ids))
            assert found.tolist() == [[one, width] for one in ids]
    asked = [(group, ids) for group, _, ids in Store.asked[2:]]
    assert asked == [(t, ids) for t in ("item", "user") for ids in ([1, 2, 3], [4], [1])]
    some = rows_of(hetero=True, node_types=("user",))
    assert "user" in some
    assert "item" not in some


@pytest.mark.parametrize(
    ("gives", "match"),
    [
        ("nothing", "gave, for 1 rows of 'x' of .*, nothing"),
        ("number", r"gave, for 1 rows .*, \[\]"),
        ("more", r"gave, for 1 rows .*, \[9, 2\]"),
    ],
)
def test_what_is_no_row_is_refused_at_once(gives: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        rows_of(gives)


@pytest.mark.parametrize(
    ("gives", "match"),
    [
        (
            "wider",
            r"\[3, 3\], and before that rows of "
            r"float32 \[2\]",
        ),
        ("doubles", "float64"),
    ],
)
def test_rows_that_are_unlike_the_first_are_refused(gives: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        rows_of(gives).fetch(NODE, np.array([1, 2, 3]))
