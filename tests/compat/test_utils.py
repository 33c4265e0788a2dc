"""The paths and names that GiGL's example scripts import."""

import importlib
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import gigl_loader
from gigl_loader import ConfigError, UsageError
from gigl_loader.compat import utils
from gigl_loader.testing import run_ranks
from tests.support.conditions import Gpus

GIGL_IMPORTS = {
    "gigl_loader": ("DistABLPLoader", "DistDataset", "DistNeighborLoader", "DistributedContext"),
    "gigl_loader.distributed_neighborloader": ("DistNeighborLoader",),
    "gigl_loader.graph_store": (
        "GraphStoreInfo",
        "RemoteDistDataset",
        "init_compute_process",
        "shutdown_compute_process",
    ),
    "gigl_loader.utils": tuple(utils.__all__),
}


@pytest.mark.parametrize("module", GIGL_IMPORTS)
def test_the_names_of_gigls_examples(module: str) -> None:
    """One class under two paths is one class."""
    found = importlib.import_module(module)
    for name in GIGL_IMPORTS[module]:
        assert getattr(found, name) is getattr(gigl_loader, name, getattr(found, name))


def test_ports_are_free_and_different() -> None:
    ports = utils.get_free_ports(20)
    assert len(set(ports)) == 20
    assert 0 < utils.get_free_port() < 2**16
    with pytest.raises(ConfigError, match="num_ports must be"):
        utils.get_free_ports(0)


@pytest.mark.parametrize(("count", "expected"), [(0, "cpu"), (2, "cuda:1")])
def test_devices_are_taken_in_turn(count: int, expected: str, gpus: Gpus) -> None:
    gpus.extend([0] * count)
    assert utils.get_available_device(3) == torch.device(expected)


def _ask(rank: int, size: int) -> None:
    found = [
        utils.get_free_ports_from_master_node(num_ports=2),
        utils.get_free_ports_from_node(1, node_rank=1),
        utils.get_internal_ip_from_master_node(),
        utils.get_internal_ip_from_all_ranks(),
    ]
    everyone: list = [None] * size
    dist.all_gather_object(everyone, found)
    assert everyone[0] == everyone[1]
    assert [len(found[0]), len(found[1]), len(found[3])] == [2, 1, 2]
    with pytest.raises(ConfigError, match="node_rank"):
        utils.get_internal_ip_from_node(2)
    with pytest.raises(ConfigError, match="num_ports"):  # on both, or one would wait
        utils.get_free_ports_from_node(0, node_rank=1)


@pytest.mark.multiprocess
def test_ranks_agree(tmp_path: Path) -> None:
    run_ranks(_ask, world_size=2, tmp_path=tmp_path)


def test_without_a_group() -> None:
    with pytest.raises(UsageError, match="init_process_group"):
        utils.get_internal_ip_from_master_node()
