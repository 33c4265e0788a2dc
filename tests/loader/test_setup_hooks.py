"""GiGL's two steps before a loader's constructor: an override takes effect, whether it calls super.

Expected batches are those of a loader that was given the changed value.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import (
    BaseDistLoader,
    ConfigError,
    DistABLPLoader,
    DistDataset,
    DistNeighborLoader,
    GraphStoreInfo,
    PeerError,
    RemoteDistDataset,
    WrongTypeError,
)
from gigl_loader.sampler import ABLPNodeSamplerInput
from gigl_loader.testing import TinyGraph, batch_digest, run_cluster, run_ranks
from tests.compat.test_gigls_loaders import SEEDS, _homogeneous, _typed
from tests.support.glt import NodeSamplerInput

GRAPH = TinyGraph.random(60, 400, seed=5)
HOW: dict[str, Any] = {"batch_size": 8, "seed": 4, "num_workers": 1}
PARAMETERS = {
    "input_nodes": torch.arange(40),
    "local_rank": 0,
    "local_world_size": 1,
    "device": torch.device("cpu"),
    "node_rank": 0,
    "node_world_size": 1,
    "num_workers": 1,
    "worker_concurrency": 4,
    "channel_size": "4GB",
    "num_cpu_threads": None,
}
"""What GiGL's hook is given, by keyword, besides the dataset and an address."""


def _digests(loader: Any) -> list[str]:
    with loader:
        return [batch_digest(batch) for batch in loader]


class Seen(DistNeighborLoader):
    """Sees what the hook gets and what is set before it."""

    def _setup_for_colocated(self, *_: Any, **given: Any) -> Any:
        self.given, self.device_before = given, self.to_device
        self.found = super()._setup_for_colocated(**given)
        return self.found


def test_the_hook_has_gigls_keywords_and_returns_its_three_parts() -> None:
    dataset = GRAPH.dataset()
    with Seen(dataset, [3, 2], torch.arange(40), **HOW) as loader:
        assert loader.device_before == torch.device("cpu")
        assert loader.given.pop("dataset") is dataset
        assert loader.given.pop("master_ip_address")
        assert loader.given.pop("input_nodes").equal(PARAMETERS["input_nodes"])
        assert loader.given == {k: v for k, v in PARAMETERS.items() if k != "input_nodes"}
        sampler_input, worker_options, schema = loader.found
        assert sampler_input.node.tolist() == list(range(40))
        assert (worker_options.num_workers, schema) == (1, dataset.schema)
        assert loader.input_data is sampler_input
        assert loader.worker_options is worker_options


class Changed(DistNeighborLoader):
    """Changes what it passes on."""

    change: dict[str, Any]

    def _setup_for_colocated(self, *_: Any, **given: Any) -> Any:
        return super()._setup_for_colocated(**{**given, **self.change})


class Cut(DistNeighborLoader):
    """Changes what comes back."""

    def _setup_for_colocated(self, *_: Any, **given: Any) -> Any:
        sampler_input, worker_options, schema = super()._setup_for_colocated(**given)
        return NodeSamplerInput(sampler_input.node[:20], None), worker_options, schema


class Replaced(DistNeighborLoader):
    """Makes all parts by the static methods, as GiGL's own hook does."""

    def _setup_for_colocated(self, *_: Any, **given: Any) -> Any:
        return _three_parts(**given)


def _three_parts(dataset: Any, input_nodes: Any, **given: Any) -> Any:
    names = ("local_rank", "local_world_size", "node_rank", "node_world_size", "device")
    place = {name: given[name] for name in (*names, "master_ip_address", "num_cpu_threads")}
    port = BaseDistLoader.initialize_colocated_sampling_worker(**place)
    options = BaseDistLoader.create_colocated_worker_options(
        dataset_num_partitions=dataset.num_partitions,
        num_workers=given["num_workers"],
        worker_concurrency=given["worker_concurrency"],
        master_ip_address=given["master_ip_address"],
        master_port=port,
        channel_size=given["channel_size"],
        pin_memory=False,
    )
    return NodeSamplerInput(input_nodes[:20], None), options, dataset.schema


@pytest.mark.parametrize("kind", [Cut, Replaced], ids=["result", "replaced"])
@pytest.mark.multiprocess
def test_the_input_that_a_hook_returns_is_the_loaders(kind: Any) -> None:
    dataset = GRAPH.dataset()
    expected = _digests(DistNeighborLoader(dataset, [3, 2], torch.arange(20), **HOW))
    loader = kind(dataset, [3, 2], torch.arange(40), **HOW)
    assert len(loader) == 3
    assert _digests(loader) == expected


@pytest.mark.multiprocess
def test_what_a_hook_passes_on_takes_effect() -> None:
    dataset = GRAPH.dataset()
    Changed.change = {"input_nodes": torch.arange(20), "num_workers": 2, "worker_concurrency": 1}
    loader = Changed(dataset, [3, 2], torch.arange(40), **HOW)
    assert loader.worker_options.num_workers == 2
    assert loader._mp_producer.num_workers == 2
    expected = _digests(DistNeighborLoader(dataset, [3, 2], torch.arange(20), **HOW))
    assert _digests(loader) == expected


def test_what_a_hook_passes_on_is_checked() -> None:
    Changed.change = {"worker_concurrency": 0}
    with pytest.raises(ConfigError, match="worker_concurrency must be"):
        Changed(GRAPH.dataset(), [3, 2], torch.arange(40), **HOW)


class Forgetful(DistNeighborLoader):
    """Has no return."""

    def _setup_for_colocated(self, *_: Any, **given: Any) -> Any:
        super()._setup_for_colocated(**given)


def test_a_hook_without_return_is_named() -> None:
    with pytest.raises(WrongTypeError, match=r"Forgetful._setup_for_colocated has to return"):
        Forgetful(GRAPH.dataset(), [3, 2], torch.arange(40), **HOW)


def test_columns_that_a_hook_lost_are_named() -> None:
    mask = torch.zeros(60, dtype=torch.bool)
    mask[20:50] = True  # whose input ids are a column
    with pytest.raises(ConfigError, match=r"lacks the columns \['input_id'\]"):
        Cut(GRAPH.dataset(), [3, 2], mask, **HOW)


class OnlyAnchors(DistABLPLoader):
    """Replaces the hook, and has no labels."""

    def _setup_for_colocated(self, *_: Any, **given: Any) -> Any:
        return _three_parts(**given)


def test_anchors_of_a_hook_need_labels() -> None:
    dataset = DistDataset.from_pyg(_homogeneous(labels=True))
    with pytest.raises(ConfigError, match="returned anchors without labels"):
        OnlyAnchors(dataset, [3, 2], SEEDS, **HOW)


class Labeled(OnlyAnchors):
    """Replaces the hook, with labels of its own."""

    def _setup_for_colocated(self, *_: Any, **given: Any) -> Any:
        plain, worker_options, schema = super()._setup_for_colocated(**given)
        positives = {
            ("u", "to_gigl_positive", "v"): torch.stack([plain.node % 40, plain.node % 7], 1)
        }
        return ABLPNodeSamplerInput(plain.node, "u", positives, {}), worker_options, schema

    def __init__(self, dataset: Any, fanout: Any, seeds: Any, **how: Any) -> None:
        super().__init__(dataset, fanout, seeds, ("u", "to", "v"), **how)


@pytest.mark.multiprocess
def test_labels_of_a_hook_are_sampled() -> None:
    dataset = DistDataset.from_pyg(_typed(labels=True))
    with Labeled(dataset, [3, 2], SEEDS, use_label_edge_index_output=True, **HOW) as loader:
        seen = 0
        for batch in loader:
            anchors, labels = batch.y_positive
            seeds, ids = batch["u"].n_id[anchors], batch["v"].n_id[labels]
            for seed in batch["u"].batch.tolist():
                assert ids[seeds == seed].tolist() == [seed % 40, seed % 7]
                seen += 1
    assert seen == 20


def _use_ranks(rank: int, size: int) -> None:
    if rank == 1:
        Changed.change = {"worker_concurrency": 0}
    else:
        Changed.change = {}
    error = ConfigError if rank == 1 else PeerError
    with pytest.raises(error):
        Changed(GRAPH.dataset(), [3, 2], torch.arange(40), **HOW)
    error = WrongTypeError if rank == 1 else PeerError
    with pytest.raises(error):
        (Forgetful if rank == 1 else Seen)(GRAPH.dataset(), [3, 2], torch.arange(40), **HOW)
    loader = Replaced(GRAPH.dataset(), [3, 2], torch.arange(20 + rank, 40 + rank), **HOW)
    assert sorted(torch.cat([batch.batch for batch in loader]).tolist()) == list(
        range(20 + rank, 40 + rank)
    ), "a hook's input is this rank's alone, though another has the same seeds"
    loader.shutdown()


@pytest.mark.multiprocess
def test_a_rank_whose_hook_fails_fails_the_others_at_once(tmp_path: Path) -> None:
    run_ranks(_use_ranks, world_size=2, tmp_path=tmp_path)


class OnServers(DistNeighborLoader):
    """Changes the input of servers after, or instead of, our hook."""

    replaces = False

    def _setup_for_graph_store(self, *_: Any, **given: Any) -> Any:
        if not self.replaces:
            inputs, options, schema = super()._setup_for_graph_store(**given)
            return [NodeSamplerInput(one.node[:10], None) for one in inputs], options, schema
        dataset, input_nodes = given.pop("dataset"), given.pop("input_nodes")
        options = BaseDistLoader.create_graph_store_worker_options(
            dataset=dataset, worker_key="mine", **given
        )
        inputs = [NodeSamplerInput(input_nodes[server][:10], None) for server in range(2)]
        return inputs, options, dataset.fetch_schema(), "the key of a backend"


def _use_store(info: GraphStoreInfo, rank: int) -> None:
    dataset = RemoteDistDataset(info, rank)
    seeds = {server: ids[:25] for server, ids in dataset.fetch_node_ids().items()}
    few = {server: ids[:10] for server, ids in seeds.items()}
    expected = _digests(DistNeighborLoader(dataset, [3, 2], few, **HOW))
    for OnServers.replaces in (False, True):
        assert _digests(OnServers(dataset, [3, 2], seeds, **HOW)) == expected


def _partition(rank: int, count: int) -> DistDataset:
    return GRAPH.partitions(count)[rank]


@pytest.mark.multiprocess
def test_the_input_of_servers_that_a_hook_returns_is_the_loaders(tmp_path: Path) -> None:
    run_cluster(_use_store, dataset=_partition, tmp_path=tmp_path, servers=2, clients=1)
