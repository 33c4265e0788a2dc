"""The groups of seeds that storage servers know: by attribute, part and community."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from in_process import joined, storage
from store_cluster import HOST, info_of
from support.glt import NodeSamplerInput
from torch_geometric.data import Data

from gigl_loader import ConfigError, DistDataset, RemoteDistDataset
from gigl_loader.dataset.schema import COMMUNITY
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.loader.seed_groups import GroupSource
from gigl_loader.message import SEED_GROUP
from gigl_loader.source.held_seeds import HeldPart, HeldSeeds

NODES = 12
PARTS, COMMUNITIES = torch.arange(NODES) % 2, torch.arange(NODES) // 5
YEARS = torch.tensor([5, 5, 9, 9, 9, 1, 1, 5, 9, 1, 1, 5])


def partition(rank: int, servers: int) -> DistDataset:
    ring = torch.arange(NODES)
    data = Data(
        edge_index=torch.stack([ring, ring.roll(1)]), num_nodes=NODES, year=YEARS,
        found=COMMUNITIES,
    )  # fmt: skip
    dataset = DistDataset.from_pyg(data, partition_book=PARTS, partition_idx=rank)
    view, made = dataset.view(), DistDataset(rank, servers)
    rows = view.node_attributes[NODE, "found"]
    made._fill(replace(view, node_attributes={**view.node_attributes, (NODE, COMMUNITY): rows}), {})
    return made


def test_servers_tell_the_groups_of_seeds(take_part: Callable[[Any], None]) -> None:
    with (
        storage(2, partition=partition) as (zero, _),
        joined((HOST, zero.address[1]), 2) as cluster,
    ):
        take_part(cluster)
        dataset = RemoteDistDataset(info_of(2, 1), 0, timeout=60.0)
        schema, num_nodes = dataset.fetch_schema(), dataset.fetch_num_nodes()
        # in any order, of any server's nodes, and none of one
        seeds = [torch.tensor([3, 11, 0, 8, 1]), torch.tensor([5]), torch.empty(0).long()]
        wanted = torch.cat(seeds)

        def columns(given: Any) -> list[int]:
            inputs = [NodeSamplerInput(one, None) for one in seeds]
            GroupSource.of(given, None, schema, num_nodes).add_to(inputs, dataset, 1)
            for one in inputs:
                assert one.extra[SEED_GROUP].shape == one.node.shape
            return torch.cat([one.extra[SEED_GROUP] for one in inputs]).tolist()

        def numbers(groups: Any) -> list[int]:
            return [sorted(set(groups)).index(group) for group in groups]

        assert columns("year") == columns(YEARS) == numbers(YEARS[wanted].tolist())
        pairs = zip(COMMUNITIES[wanted].tolist(), PARTS[wanted].tolist(), strict=True)
        assert columns(None) == numbers(list(pairs))
        held = HeldSeeds([HeldPart(server=0, count=3, split="train")], None)
        source = GroupSource.of("year", None, schema, num_nodes)
        with pytest.raises(ConfigError, match=r"stay on the storage servers.*fetch_node_ids"):
            source.add_to([held], dataset, 16)
