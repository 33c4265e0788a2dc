"""Features in fewer bytes: how far off they may be, and that every way to them gives the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import HeteroData

from gigl_loader import ConfigError, DistDataset, DistNeighborLoader, partition_graph
from gigl_loader.dataset.lookup import DTYPES, check_feature_dtype, quantise, widened
from gigl_loader.inference.full_graph import full_graph
from gigl_loader.testing import TinyGraph

COLUMNS = st.lists(
    st.tuples(st.floats(-1e6, 1e6, width=32), st.floats(0, 1e4, width=32)), min_size=1, max_size=4
)


@given(columns=COLUMNS, num_rows=st.integers(0, 300), dtype=st.sampled_from(["int8", "uint8"]))
def test_integers_are_off_by_half_a_step(columns: list, num_rows: int, dtype: str) -> None:
    noise = torch.from_numpy(np.random.default_rng(0).random((num_rows, len(columns))))
    least, width = torch.tensor(columns, dtype=torch.float64).T
    values = (least + width * noise).float()
    stored, scales = quantise(values, dtype, "x")
    assert stored.dtype == getattr(torch, dtype)
    found = widened(stored, scales)
    assert found.dtype == torch.float32
    if num_rows == 0:
        return
    span = values.max(0).values - values.min(0).values
    rounding = 4 * torch.finfo(torch.float32).eps * (values.abs().max(0).values + span)
    rounding += torch.finfo(torch.float32).tiny  # below it, numbers have fewer digits, or none
    assert ((found - values).abs() <= span / 510 * 1.001 + rounding).all()


def test_short_floats_are_rounded_once_and_a_constant_column_is_exact() -> None:
    values = torch.randn(100, 3) * 1000
    for dtype in ("float16", "bfloat16"):
        kind = getattr(torch, dtype)
        assert torch.equal(widened(*quantise(values, dtype, "x")), values.to(kind).float())
    constant = torch.tensor([[-0.25, 3.5, 1e6]]).repeat(4, 1)
    assert torch.equal(widened(*quantise(constant, "uint8", "x")), constant)


@pytest.mark.parametrize(
    ("values", "dtype", "match"),
    [
        (torch.arange(4).view(2, 2), "int8", "are torch.int64, and stored as they are"),
        (torch.tensor([[1.0, torch.nan]]), "int8", "are not finite"),
        (torch.tensor([[1e6]]), "float16", "store bfloat16"),
        (torch.tensor([[1e300]], dtype=torch.float64), "bfloat16", "what bfloat16 holds$"),
        (torch.tensor([[3.4e38, 1.0], [-3.4e38, 2.0]]), "int8", "too far apart for int8"),
        (torch.tensor([[1e300], [0.0]], dtype=torch.float64), "uint8", "too far apart"),
    ],
)
def test_what_cannot_be_stored_so(values: torch.Tensor, dtype: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        quantise(values, dtype, "features of node type 'a'")


@pytest.mark.parametrize(
    ("feature_dtype", "how", "match"),
    [
        ({"item": "int4"}, {}, "must be one of"),
        (8, {}, "must be one of"),
        (torch.float32, {}, "must be one of"),
        ({"shop": "int8"}, {}, r"names 'shop', .* there are of \['user', 'item'\]"),
        ("int8", {"format": "glt"}, 'needs format="mapped"'),
    ],
)
def test_bad_arguments_write_nothing(
    tmp_path: Path, feature_dtype: Any, how: dict, match: str
) -> None:
    graph = TinyGraph.random(9, 20, heterogeneous=True)
    with pytest.raises(ConfigError, match=match):
        partition_graph(graph.to_pyg(), 1, tmp_path / "p", feature_dtype=feature_dtype, **how)
    assert not (tmp_path / "p").exists()


def test_torch_names_the_dtypes_too() -> None:
    features = {"a": torch.ones(1), "b": torch.ones(1)}
    assert check_feature_dtype(torch.int8, features) == {"a": "int8", "b": "int8"}
    assert check_feature_dtype({"b": torch.float16}, features) == {"b": "float16"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_partitions_loaders_and_look_ups_give_float32(tmp_path: Path, dtype: str) -> None:
    """Of one type among two; the other stays as it is."""
    graph = TinyGraph.random(50, 200, heterogeneous=True)
    data = graph.to_pyg()
    assert isinstance(data, HeteroData)
    generator = torch.Generator().manual_seed(0)
    data["user"].x = torch.randn((50, 5), generator=generator)
    expected = widened(*quantise(data["user"].x, dtype, "x"))
    partition_graph(data, 2, tmp_path / "two", feature_dtype={"user": dtype}, progress=False)
    partition_graph(data, 1, tmp_path / "one", feature_dtype={"user": dtype}, progress=False)
    for index in range(2):
        part: Any = DistDataset.load(tmp_path / "two", index)
        rows = part.view().node_features["user"]
        assert rows.dtype == dtype
        ids = part.node_ids["user"]
        assert torch.equal(widened(rows.values[rows.locate(ids)], rows.scales), expected[ids])
        assert part.node_feature_info["user"].dtype == torch.float32
        assert part.view().node_features["item"].scales is None
    for mmap in (False, True):
        dataset = DistDataset.load(tmp_path / "one", 0, mmap=mmap)
        with DistNeighborLoader(
            dataset, [3, 3], ("user", torch.arange(50)), num_workers=0, batch_size=20, seed=1
        ) as loader:
            for batch in loader:
                assert torch.equal(batch["user"].x, expected[batch["user"].n_id])
                assert batch["item"].x[:, 0].tolist() == batch["item"].n_id.tolist()
                assert not [name for name in batch.to_dict() if "SCALES" in str(name)]
    assert torch.equal(dataset.get_features(torch.tensor([7, 3, 7]), "user"), expected[[7, 3, 7]])
    with full_graph(torch.nn.Identity(), dataset) as whole:
        assert torch.equal(whole["user"].x, expected[whole["user"].n_id])
