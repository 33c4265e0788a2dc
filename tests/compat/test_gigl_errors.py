"""Errors that GiGL's scripts catch as ValueError: an empty dataset, and no process group."""

from typing import Any

import pytest
import torch

from gigl_loader import (
    BaseDistLoader,
    DistABLPLoader,
    DistDataset,
    DistNeighborLoader,
    NotReadyError,
    UsageError,
)
from gigl_loader.compat.utils import get_internal_ip_from_master_node
from gigl_loader.dataset.degrees import compute_and_broadcast_degree_tensor
from gigl_loader.graph_store.client.remote_dist_dataset import RemoteDistDataset
from gigl_loader.testing.local_processes import store_info

SEEDS = torch.tensor([10])


@pytest.mark.parametrize("seeds", [{0: SEEDS}, ("a", {0: SEEDS}), SEEDS, None])
@pytest.mark.parametrize("parts", [{}, {"graph_partition": {}, "node_partition_book": {}}])
@pytest.mark.parametrize("loader", [DistNeighborLoader, DistABLPLoader])
def test_a_loader_of_an_empty_dataset_is_a_value_error(loader: Any, parts: Any, seeds: Any) -> None:
    with pytest.raises(ValueError, match="is empty"):
        loader(DistDataset(rank=0, world_size=1, edge_dir="out", **parts), [2, 2], seeds)


@pytest.mark.parametrize(
    "call",
    [
        BaseDistLoader.resolve_runtime,
        get_internal_ip_from_master_node,
        lambda: compute_and_broadcast_degree_tensor({}, "in"),
        lambda: RemoteDistDataset(store_info(1, 1), 0).fetch_free_ports_on_storage_cluster(1),
    ],
    ids=["resolve_runtime", "utils", "degrees", "ports"],
)
def test_no_process_group_is_torchs_value_error(call: Any) -> None:
    with pytest.raises(ValueError, match="process group"):
        torch.distributed.get_rank()  # what torch itself raises
    with pytest.raises(NotReadyError) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, UsageError), "as before"
