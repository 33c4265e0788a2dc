"""The groups of seeds that storage servers know: by attribute, part and community."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data

from gigl_loader import ConfigError, DistDataset, DistNeighborLoader, RemoteDistDataset
from gigl_loader.batch.message import SEED_GROUP
from gigl_loader.dataset.schema import COMMUNITY
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE as NODE
from gigl_loader.graph_store.server.service import StorageService
from gigl_loader.loader.seeds.seed_groups import GroupSource
from gigl_loader.sources.held_seeds import (
    HeldSeeds,
    RemoteNodePathSamplerInput,
    RemoteNodeSplitSamplerInput,
)
from gigl_loader.testing import batch_digest
from tests.graph_store.in_process import joined, storage
from tests.graph_store.store_cluster import HOST, info_of, run_cluster, tiny_graph, tiny_partition
from tests.support.glt import NodeSamplerInput

NODES = 12
PARTS, COMMUNITIES = torch.arange(NODES) % 2, torch.arange(NODES) // 5
YEARS = torch.tensor([5, 5, 9, 9, 9, 1, 1, 5, 9, 1, 1, 5])


def partition(rank: int, servers: int) -> DistDataset:
    ring = torch.arange(NODES)
    data = Data(
        edge_index=torch.stack([ring, ring.roll(1)]), num_nodes=NODES, year=YEARS, found=COMMUNITIES
    )
    dataset = DistDataset.from_pyg(data, partition_book=PARTS, partition_idx=rank)
    view, made = dataset.view(), DistDataset(rank, servers)
    rows = view.node_attributes[NODE, "found"]
    made._fill(replace(view, node_attributes={**view.node_attributes, (NODE, COMMUNITY): rows}), {})
    return made


class ReadsFiles(StorageService):
    """Reads seeds from files that clients name."""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, allow_seed_files=True, **how)


@contextmanager
def remote(
    take_part: Callable[[Any], None], partition: Callable[[int, int], DistDataset] = partition
) -> Iterator[RemoteDistDataset]:
    """Give the graph of two servers in this process."""
    with (
        storage(2, partition=partition, kind=ReadsFiles) as (zero, _),
        joined((HOST, zero.address[1]), 2) as cluster,
    ):
        take_part(cluster)
        yield RemoteDistDataset(info_of(2, 1), 0, timeout=60.0)


def test_servers_tell_the_groups_of_seeds(take_part: Callable[[Any], None]) -> None:
    with remote(take_part) as dataset:
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


# --- seeds that stay on the servers ---------------------------------------------------------------


def test_seeds_that_stay_get_the_groups_of_their_ids(
    take_part: Callable[[Any], None], tmp_path: Path
) -> None:
    files = [tmp_path / "0.pt", tmp_path / "1.pt"]
    with remote(take_part, tiny_partition) as dataset:
        groups = torch.arange(60) * 7 % 15
        of_split = dataset.fetch_node_ids(split="train")
        # any order, repeats, and nodes of the other server
        of_files = {0: torch.tensor([7, 2, 59, 7]), 1: torch.tensor([2, 0, 31])}
        for server, file in enumerate(files):
            torch.save(of_files[server], file)
        split = RemoteNodeSplitSamplerInput("train")
        named = [RemoteNodePathSamplerInput(str(file)) for file in files]
        cases: list[tuple[dict[int, Any], dict[int, Tensor]]] = [
            ({0: split, 1: split}, of_split),
            ({1: split}, {1: of_split[1]}),  # the other server has none
            (dict(enumerate(named)), of_files),
            ({1: named[0], 0: named[1]}, {0: of_files[1], 1: of_files[0]}),
        ]
        source = GroupSource.of(groups, None, dataset.fetch_schema(), dataset.fetch_num_nodes())
        for given, ids in cases:
            by_server = dataset.fetch_held_seeds(given, NODE)
            held = [by_server.get(server, HeldSeeds([], NODE)) for server in range(2)]
            source.add_to(held, dataset, 1)
            wanted = [groups[ids.get(server, torch.empty(0).long())] for server in range(2)]
            numbers = torch.cat(wanted).unique().tolist()
            for one, of_server in zip(held, wanted, strict=True):
                assert one.node.numel() == 0, "the ids are not kept here"
                column = one.extra[SEED_GROUP].tolist()
                assert column == [numbers.index(group) for group in of_server.tolist()]
        counted = dataset.fetch_held_seeds(dict(enumerate(named)), NODE)
        torch.save(torch.arange(8), files[1])
        with pytest.raises(ConfigError, match=r"server 1 has 8 seeds of .*changed.*build the load"):
            source.add_to(list(counted.values()), dataset, 1)


EPOCH, TAKEN = 3, 2
"""The epoch that is interrupted, and the batches that each of two ranks takes before."""
IN_GROUPS: dict[str, Any] = {
    "shuffle": "groups",
    "seed_groups": torch.arange(60) * 7 % 15,
    "groups_per_batch": 4,
    "batch_size": 4,
    "seed": 5,
    "shard": "world",
}


def digests(batches: Any) -> list[str]:
    return list(map(batch_digest, batches))


def take_some(info: Any, rank: int, folder: Path) -> None:
    """Begin the epoch as one of two ranks, and leave a state."""
    split: Any = dict.fromkeys(range(2), RemoteNodeSplitSamplerInput("train"))
    with DistNeighborLoader(RemoteDistDataset(info, rank), [3, 2], split, **IN_GROUPS) as loader:
        loader.set_epoch(EPOCH)
        found = digests(islice(loader, TAKEN))
        torch.save((found, loader.state_dict()), folder / f"{rank}.begun")


def take_the_rest(info: Any, rank: int, folder: Path) -> None:
    """End the epoch as the only rank; then take two more, of seeds that stay and of their ids."""
    dataset = RemoteDistDataset(info, rank)
    split: Any = dict.fromkeys(range(2), RemoteNodeSplitSamplerInput("train"))
    with DistNeighborLoader(dataset, [3, 2], split, **IN_GROUPS) as loader:
        loader.load_state_dict(torch.load(folder / "1.begun")[1])
        rest, following = digests(loader), digests(loader)
    with DistNeighborLoader(
        dataset, [3, 2], dataset.fetch_node_ids(split="train"), **IN_GROUPS
    ) as loader:
        loader.set_epoch(EPOCH + 1)
        assert digests(loader) == following, "one order, wherever the ids are"
    # a state goes on only in the same groups
    with (
        DistNeighborLoader(
            dataset, [3, 2], split, **{**IN_GROUPS, "seed_groups": torch.arange(60) // 4}
        ) as loader,
        pytest.raises(ConfigError, match="seeds_digest"),
    ):
        loader.load_state_dict(torch.load(folder / "1.begun")[1])
    torch.save((rest, following), folder / "rest")


@pytest.mark.multiprocess
def test_an_epoch_of_seeds_that_stay_is_that_of_one_process(tmp_path: Path) -> None:
    for name, client, clients in [("two", take_some, 2), ("one", take_the_rest, 1)]:
        (tmp_path / name).mkdir()
        run_cluster(tmp_path / name, client, tmp_path, clients=clients)
    begun = [torch.load(tmp_path / f"{rank}.begun")[0] for rank in range(2)]
    rest, following = torch.load(tmp_path / "rest")
    ids = torch.cat([tiny_partition(server, 2).train_node_ids for server in range(2)])
    with DistNeighborLoader(
        tiny_graph().dataset(), [3, 2], ids, num_workers=0, **{**IN_GROUPS, "shard": "machine"}
    ) as loader:
        loader.set_epoch(EPOCH)
        # two ranks take turns
        taken = [digest for both in zip(*begun, strict=True) for digest in both]
        assert taken + rest == digests(loader)
        assert following == digests(loader)
