"""Sizes: one parser and one meaning of each unit, wherever a size is given."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import BaseDistLoader, DistDataset, DistNeighborLoader, partition_tables
from gigl_loader.commands.plan import cache_size, gigabytes
from gigl_loader.dataset.cache_options import CacheOptions
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.sizes import parse_size, size_in_words


@pytest.mark.parametrize(
    ("given", "nbytes"),
    [
        (7, 7),
        ("7", 7),
        ("7B", 7),
        ("2KB", 2000),
        ("2kib", 2048),
        ("1.5 mb", 1_500_000),
        (" 4GB ", 4 * 10**9),
        ("4GiB", 2**32),
        ("1TB", 10**12),
        ("0.5TiB", 2**39),
        ("4g", 4 * 10**9),
        ("512Mi", 2**29),
        ("1e3KB", 10**6),
        ("1,000 B", 1000),
    ],
)
def test_a_size_is_bytes(given: Any, nbytes: int) -> None:
    assert parse_size(given, "size") == nbytes


@pytest.mark.parametrize(
    "given",
    [0, -1, True, None, 2.5, "", "GB", "-1GB", "0.1B", "4PB", "4iB", "four", "nan", "inf", "1e999"],
)
def test_what_is_no_size_is_refused_with_keyword_value_and_forms(given: Any) -> None:
    with pytest.raises(ConfigError) as error:
        parse_size(given, "channel_size")
    text = str(error.value)
    assert text.startswith("channel_size must be")
    assert text.endswith(f"got {given!r}")
    assert "GiB" in text
    assert "4 * 2**30" in text


@pytest.mark.parametrize(("given", "nbytes"), [("2GB", 2 * 10**9), ("2GiB", 2**31)])
def test_all_keywords_and_commands_mean_the_same(given: str, nbytes: int) -> None:
    cache = CacheOptions.of(given)
    assert cache is not None
    assert cache.size == nbytes
    assert cache_size(given) == nbytes
    assert gigabytes(given) * 1e9 == nbytes
    options = BaseDistLoader.create_colocated_worker_options(
        dataset_num_partitions=1,
        num_workers=1,
        worker_concurrency=1,
        master_ip_address="127.0.0.1",
        master_port=1,
        channel_size=given,
        pin_memory=False,
    )
    channel = BaseDistLoader.create_colocated_channel(options)
    assert channel.size == nbytes


def test_each_keyword_is_named_in_its_error(tmp_path: Path) -> None:
    from torch_geometric.data import Data

    data = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]))
    dataset = DistDataset.from_pyg(data)
    for keyword in ("channel_size", "remote_cache"):
        size: dict[str, Any] = {keyword: "4 gigs"}
        with pytest.raises(ConfigError, match=f"{keyword} must be .*got '4 gigs'"):
            DistNeighborLoader(dataset, [1], **size)
    with pytest.raises(ConfigError, match=r"memory must be .*got 'much'"):
        partition_tables(None, None, 1, tmp_path / "g", memory="much")  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (1_500_000_000, "1.5 GB"),
        (999_700_000, "1 GB"),
        (10**9, "1 GB"),
        (977 * 10**6, "977 MB"),
        (10**6, "1 MB"),
        (900, "900 bytes"),
    ],
)
def test_a_size_that_is_suggested_can_be_given(nbytes: int, words: str) -> None:
    assert size_in_words(nbytes) == words
    if not words.endswith("bytes"):
        assert parse_size(words, "remote_cache") == pytest.approx(nbytes, rel=1e-2)
