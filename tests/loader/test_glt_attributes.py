"""What subclasses written for GLT's loader read: set as GiGL sets it, and kept as it changes."""

from typing import Any

import pytest
import torch

from gigl_loader import (
    BaseDistLoader,
    ConfigError,
    DistDataset,
    DistNeighborLoader,
    DistSamplingProducer,
    KHopNeighborSamplerOptions,
    PPRSamplerOptions,
)
from gigl_loader.dataset.schema import EdgeDir
from gigl_loader.runtime.glt_classes import DistLoader
from gigl_loader.testing import TinyGraph
from tests.support import glt
from tests.support.glt import NodeSamplerInput

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("group")]

NAMES = ("_node_types", "_edge_types", "_reversed_edge_types", "_etype_str_to_rev")
BUYS, KNOWS = ("user", "buys", "item"), ("user", "knows", "user")
LABELS = {
    "in": ("item", "buys_gigl_positive", "user"),
    "out": ("user", "buys_gigl_positive", "item"),
}


def _graph(kind: str, edge_dir: EdgeDir) -> DistDataset:
    if kind == "plain":
        return TinyGraph.random(40, 200).dataset(edge_dir=edge_dir)
    graph = TinyGraph(
        {"user": 20, "item": 15}, {BUYS: [(0, 1), (3, 2)], KNOWS: [(1, 4), (2, 2), (4, 0)]}
    )
    labels = {BUYS: (torch.tensor([[0, 1], [3, 4]]), None)}
    return DistDataset.from_pyg(graph.to_pyg(), edge_dir=edge_dir, supervision=labels)


@pytest.fixture(params=["in", "out"])
def edge_dir(request: pytest.FixtureRequest) -> EdgeDir:
    return request.param


@pytest.mark.parametrize("kind", ["plain", "labeled"])
def test_types_are_those_of_the_dataset_as_glt_names_them(kind: str, edge_dir: EdgeDir) -> None:
    dataset = _graph(kind, edge_dir)
    seeds = dataset.node_ids if kind == "plain" else ("user", torch.arange(20))
    with DistNeighborLoader(dataset, [2], seeds, num_workers=0) as loader:
        if kind == "plain":
            assert [getattr(loader, name) for name in NAMES] == [None, None, [], {}]
            assert (
                loader._input_type is None or loader._input_type == "default_homogeneous_node_type"
            )
            return
        assert loader._input_type == "user"
        label = LABELS[edge_dir]
        assert set(loader._node_types or ()) == {"user", "item"}
        assert set(loader._edge_types or ()) == {BUYS, KNOWS, label}
        rev_label = (label[2], f"rev_{label[1]}", label[0])
        rev_buys = ("item", "rev_buys", "user")
        if edge_dir == "in":
            expected = {
                "item__rev_buys__user": BUYS,
                "user__knows__user": KNOWS,
                "__".join(rev_label): label,
            }
        else:
            expected = {
                "user__buys__item": rev_buys,
                "user__knows__user": KNOWS,
                "__".join(label): rev_label,
            }
        assert loader._etype_str_to_rev == expected
        assert set(loader._reversed_edge_types) == set(expected.values())


@pytest.mark.glt
def test_types_are_what_glts_own_method_sets(edge_dir: EdgeDir) -> None:
    """`BaseDistLoader` has the method with and without GLT; here GLT's own is the reference."""
    dataset = _graph("labeled", edge_dir)
    theirs = object.__new__(DistLoader)
    theirs.edge_dir, theirs._shutdowned = edge_dir, True
    theirs._set_ntypes_and_etypes(dataset.get_node_types(), dataset.get_edge_types())
    with DistNeighborLoader(dataset, [2], ("user", torch.arange(20)), num_workers=0) as loader:
        assert sorted(loader._node_types or ()) == sorted(theirs._node_types)
        assert loader._edge_types == theirs._edge_types
        assert loader._reversed_edge_types == theirs._reversed_edge_types
        assert loader._etype_str_to_rev == theirs._etype_str_to_rev


class Watching(DistNeighborLoader):
    """Reads GLT's attributes where subclasses do, in its hooks."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self.seen: list[Any] = []
        super().__init__(*arguments, **keywords)

    def _collate_fn(self, msg: Any) -> Any:
        self.seen.append((self._num_recv, self._epoch, self._num_expected, self._shutdowned))
        return super()._collate_fn(msg)

    def shutdown(self, idle_timeout: float | None = None) -> None:
        if not self._shutdowned:
            self.seen.append((self._input_len, self.num_data_partitions, self.data_partition_idx))
        super().shutdown(idle_timeout)
        self.seen.append(self._shutdowned)


def test_hooks_of_a_subclass_read_them_as_they_are(edge_dir: EdgeDir) -> None:
    loader = Watching(
        _graph("plain", edge_dir), [2], torch.arange(25), batch_size=10, num_workers=1
    )
    assert isinstance(loader._mp_producer, DistSamplingProducer)
    assert (loader._num_expected, loader._input_len) == (3, 25)
    for _ in loader:
        pass
    assert loader._num_recv == loader._num_expected, "by which GLT's own loop ends an epoch"
    assert [numbers[1:] for numbers in loader.seen] == [(1, 3, False)] * 3
    loader.shutdown()
    loader.shutdown()
    assert loader.seen[3:] == [(25, 1, 0), True, True]


def test_a_colocated_loader_has_no_servers(edge_dir: EdgeDir) -> None:
    with DistNeighborLoader(_graph("plain", edge_dir), [2], num_workers=0) as loader:
        for name in ("_server_rank_list", "_producer_id_list", "_input_data_list"):
            assert not hasattr(loader, name), "as in GLT"


# --- GiGL's newer methods -------------------------------------------------------------------------


@pytest.fixture
def parts() -> dict[str, Any]:
    dataset = TinyGraph.random(40, 200).dataset()
    runtime = BaseDistLoader.resolve_runtime()
    port = BaseDistLoader.initialize_colocated_sampling_worker(
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        node_world_size=1,
        master_ip_address=runtime.master_ip_address,
        device=torch.device("cpu"),
        num_cpu_threads=None,
    )
    return {
        "dataset": dataset,
        "sampler_input": NodeSamplerInput(torch.arange(30), None),
        "dataset_schema": dataset.schema,
        "runtime": runtime,
        "device": torch.device("cpu"),
        "sampling_config": BaseDistLoader.create_sampling_config([2], dataset.schema, 8, seed=4),
        "worker_options": BaseDistLoader.create_colocated_worker_options(
            dataset_num_partitions=1,
            num_workers=1,
            worker_concurrency=2,
            master_ip_address=runtime.master_ip_address,
            master_port=port,
            channel_size="16MB",
            pin_memory=False,
        ),
    }


def test_a_producer_is_made_as_gigl_makes_it(parts: dict[str, Any]) -> None:
    options = KHopNeighborSamplerOptions([2])
    producer = BaseDistLoader.create_mp_producer(
        dataset=parts["dataset"],
        sampler_input=parts["sampler_input"],
        sampling_config=parts["sampling_config"],
        worker_options=parts["worker_options"],
        sampler_options=options,
        channel_name="train_0",
    )
    with BaseDistLoader(
        **parts,
        producer=producer,
        sampler_options=options,
        backend_key=None,
        process_start_gap_seconds=0.0,
    ) as loader:
        seeds = torch.cat([batch.batch for batch in loader])
    assert seeds.tolist() == list(range(30))


def test_a_colocated_loader_needs_a_producer(parts: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="'producer': 'NoneType'"):
        BaseDistLoader(**parts, producer=None, sampler_options=None)


def test_weights_are_asked_for_before_anything_starts() -> None:
    check = BaseDistLoader.validate_for_weighted_sampling
    graph = TinyGraph.random(20, 50).to_pyg()
    weighted = DistDataset.from_pyg(graph)
    check(True, weighted, KHopNeighborSamplerOptions([2]))
    with pytest.raises(ConfigError, match="cannot be combined with PPRSamplerOptions"):
        check(True, weighted, PPRSamplerOptions())
    del graph.edge_weight
    plain = DistDataset.from_pyg(graph)
    check(False, plain, PPRSamplerOptions())
    with pytest.raises(ConfigError, match="no edge type of the dataset has weights"):
        check(True, plain, KHopNeighborSamplerOptions([2]))


def test_the_method_is_there_without_glt() -> None:
    """Not only by inheritance: where GLT is not installed, its class here has no such method."""
    assert "_set_ntypes_and_etypes" in vars(
        next(kind for kind in BaseDistLoader.__mro__ if kind.__name__ == "AnswersGLT")
    )
    assert glt.available or not hasattr(DistLoader, "_set_ntypes_and_etypes")
