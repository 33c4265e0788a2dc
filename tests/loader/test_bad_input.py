"""Bad input is a clear error before any process starts."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from gigl_loader import (
    BaseDistLoader,
    ConfigError,
    CustomSamplerOptions,
    DistDataset,
    DistNeighborLoader,
    FeatureStoreOptions,
    KHopNeighborSamplerOptions,
    UsageError,
    message_passing_to_positive_label,
    partition_graph,
)
from gigl_loader.testing import TinyGraph, one_rank
from tests.support.zygote import Zygote, use_zygote

PLAIN, TYPED = TinyGraph.random(20, 60), TinyGraph.random(20, 60, heterogeneous=True)
BUYS = ("user", "buys", "item")


@pytest.fixture(scope="module", autouse=True)
def _group(tmp_path_factory: pytest.TempPathFactory):
    with one_rank(tmp_path_factory.mktemp("group")):
        yield


class _NoZygote(Zygote):
    def __init__(self) -> None:
        pass

    def start(self, *how: Any, **more: Any) -> Any:
        raise AssertionError("a process was started")

    def fork(self, *how: Any, **more: Any) -> Any:
        self.start()


@pytest.fixture(autouse=True)
def _no_process() -> Iterator[None]:
    with use_zygote(_NoZygote()):
        yield


@pytest.fixture(scope="module")
def plain() -> DistDataset:
    return PLAIN.dataset()


@pytest.fixture(scope="module")
def typed() -> DistDataset:
    return TYPED.dataset()


def _make(dataset, num_neighbors=(2, 2), seeds=None, **how):
    if isinstance(num_neighbors, tuple):
        num_neighbors = list(num_neighbors)
    seeds = torch.arange(5) if seeds is None else seeds
    DistNeighborLoader(dataset, num_neighbors, seeds, **how)


@pytest.mark.parametrize(
    ("seeds", "match"),
    [
        (torch.tensor([3, 20, 1]), r"input_nodes\[1\] = 20 is no node id: ids are in \[0, 20\)"),
        (torch.tensor([-1]), r"input_nodes\[0\] = -1"),
        (torch.tensor([1.0]), "int64.*float32"),
        (torch.tensor([1], dtype=torch.int32), "int64.*int32"),
        (torch.tensor([[1, 2]]), r"\[n\] int64, got \[1, 2\]"),
        (torch.ones(19, dtype=torch.bool), "mask of shape"),
        (torch.empty(3, dtype=torch.int64, device="meta"), "on the CPU.*meta"),
        (object(), "node ids, as a tensor, an array or a list, or a mask, got object"),
        (("no_such", torch.arange(2)), "'no_such'"),
        ({0: torch.arange(2)}, "graph store"),
    ],
)
def test_seeds(plain: DistDataset, seeds, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        _make(plain, seeds=seeds)


@pytest.mark.parametrize(
    ("seeds", "match"),
    [
        (torch.arange(3), r"heterogeneous.*\(node_type, ids\).*item.*user"),
        (("thing", torch.arange(3)), r"'thing'.*\['item', 'user'\]"),
        (("item", torch.tensor([77])), "77"),
    ],
)
def test_seeds_by_type(typed: DistDataset, seeds, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        _make(typed, seeds=seeds)


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"remote_cache": "lots"}, "remote_cache must be bytes above 0, or a string"),
        ({"remote_cache": "0%"}, "above 0% and at most 100%, got '0%'"),
        ({"remote_cache": "120%"}, "at most 100%"),
        ({"remote_cache": True}, 'or a share such as "20%"; got True'),
        ({"remote_cache": 0.2}, 'a share such as "20%"; got 0.2'),
        ({"channel_size": True}, "channel_size must be bytes above 0, or a string"),
        ({"remote_cache": "20%", "num_workers": 0}, "is filled by sampling workers"),
        ({"remote_cache": "20%", "exchange": "collective"}, "is filled by sampling workers"),
    ],
)
def test_caches(plain: DistDataset, how: dict, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        _make(plain, **how)


def test_all_nodes_of_a_heterogeneous_graph(typed: DistDataset) -> None:
    with pytest.raises(ConfigError, match="input_nodes"):
        DistNeighborLoader(typed, [2])


@pytest.mark.parametrize(
    ("fanout", "match"),
    [
        ("", "a fanout per hop"),
        (5, "list"),
        ([2, -2], r"\[1\].*-2"),
        ([2.0], r"\[0\].*2\.0"),
        ([True], "True"),
        (["2"], "'2'"),
        ({BUYS: [2]}, "homogeneous"),
    ],
)
def test_fanouts(plain: DistDataset, fanout, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        _make(plain, fanout)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({BUYS: None}, r"it lacks .*'buys'"),
        ({("user", "sells", "item"): [1]}, "'sells'"),
        ({message_passing_to_positive_label(BUYS): [1]}, "gigl_positive"),
        ({BUYS: [1, 2]}, "number of hops must be the same"),
        ({BUYS: [-3]}, "-3"),
    ],
)
def test_fanouts_by_type(typed: DistDataset, change: dict, match: str) -> None:
    fanout = {name: [1] for name in TYPED.edges} | change
    fanout = {name: hops for name, hops in fanout.items() if hops is not None}
    with pytest.raises(ConfigError, match=match):
        _make(typed, fanout, ("user", torch.arange(3)))


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"batch_size": 0}, "batch_size.*> 0.*0"),
        ({"batch_size": -4}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"num_workers": 0, "worker_init_fn": print}, "worker_init_fn is for sampling processes"),
        ({"num_workers": 2, "exchange": "collective"}, "num_workers=2 processes have nothing"),
        ({"exchange": "rpc"}, "exchange must be"),
        ({"num_workers": False}, "num_workers.*False"),
        ({"num_workers": -1}, "num_workers.*>= 0, got -1"),
        ({"shuffle": "False"}, "shuffle must be True, False or"),
        ({"drop_last": 3}, "drop_last must be True or False, got 3"),
        ({"with_weight": "w"}, "with_weight must be True or False, got 'w'"),
        ({"worker_concurrency": 0}, "worker_concurrency"),
        ({"worker_concurrency": 33}, r"in \[1, 32\], got 33"),
        ({"channel_size": "4 parsecs"}, "4 parsecs"),
        ({"channel_size": 0}, "above 0"),
        ({"prefetch_size": 2}, "prefetch_size.*graph-store"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 1.5}, r"seed must be an integer.*1\.5"),
        ({"seed": "a"}, "seed must be an integer.*'a'"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "5"}, "timeout.*'5'"),
        ({"timeout": float("nan")}, "timeout.*nan"),
        ({"timeout": float("inf")}, "timeout.*inf"),
        ({"pin_memory_device": "cuda:99"}, "'cuda:99'.*CUDA devices here"),
        ({"pin_memory_device": "gpu"}, "'gpu' is no torch device"),
        ({"device": "meta"}, "'meta': batches are copied to CUDA devices alone"),
        ({"device": "mps"}, "'mps': batches are copied to CUDA devices alone"),
        ({"even_ranks": "yes"}, "even_ranks.*'drop'"),
        ({"sampler_options": KHopNeighborSamplerOptions([9])}, "differ"),
        (
            {"with_edge": None, "process_start_gap_seconds": -1},
            "process_start_gap_seconds|multiple",
        ),
    ],
)
def test_options(plain: DistDataset, how: dict, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        DistNeighborLoader(plain, [2, 2], torch.arange(5), **how)


def test_a_worker_init_fn_that_no_worker_can_import(plain: DistDataset) -> None:
    with pytest.raises(ConfigError, match="worker_init_fn"):
        _make(plain, worker_init_fn=lambda number: None)


def test_a_sampler_path_without_a_module() -> None:
    with pytest.raises(ConfigError, match="ClassName"):
        CustomSamplerOptions("Sampler")


@pytest.mark.parametrize("options", [CustomSamplerOptions, FeatureStoreOptions])
def test_a_class_in_place_of_its_path(options: Any) -> None:
    with pytest.raises(ConfigError, match=r"ClassName', got .*: give 'collections\.OrderedDict'"):
        options(OrderedDict)


@pytest.mark.parametrize("use", [iter, len])
def test_a_subclass_that_was_not_built(use: Callable[[Any], object]) -> None:
    class Mine(DistNeighborLoader):
        def __init__(self) -> None:
            pass

    with pytest.raises(UsageError, match=r"Mine was not built: .* super\(\).__init__"):
        use(Mine())


def test_a_dataset_has_no_items(plain: DistDataset) -> None:
    with pytest.raises(UsageError, match="iterate over a loader of it"):
        plain[0]
    with pytest.raises(UsageError, match="iterate over a loader of it"):
        list(plain)


def test_weights_that_are_not_there() -> None:
    data = PLAIN.to_pyg()
    del data.edge_weight
    with pytest.raises(ConfigError, match="no weights"):
        _make(DistDataset.from_pyg(data), with_weight=True)


@pytest.mark.parametrize(
    ("dataset", "error"), [(None, ConfigError), ("graph", ConfigError), (DistDataset(), UsageError)]
)
def test_datasets_that_are_none(dataset, error: type[Exception]) -> None:
    with pytest.raises(error):
        _make(dataset)


def test_a_pyg_graph_in_place_of_a_dataset() -> None:
    with pytest.raises(ConfigError, match=r"got Data; DistDataset\.from_pyg"):
        _make(PLAIN.to_pyg())


def test_a_missing_file(tmp_path) -> None:
    partition_graph(PLAIN.to_pyg(), 2, tmp_path)
    missing = next(path for path in sorted((tmp_path / "part1").rglob("*")) if path.is_file())
    missing.unlink()
    with pytest.raises(ConfigError, match=missing.name):
        DistDataset.load(tmp_path, 1)
    with pytest.raises(ConfigError):
        DistDataset.load(tmp_path / "nowhere", 0)


def test_no_process_group(
    plain: DistDataset, monkeypatch: pytest.MonkeyPatch, torch_says: Callable[..., None]
) -> None:
    """torchrun started several processes, and the script made no group of them."""
    torch_says(is_initialized=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match=r"init_process_group.*torchrun"):
        _make(plain)
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(UsageError, match=r"init_process_group.*torchrun"):
        BaseDistLoader.resolve_runtime()


def test_what_is_refused_leaves_the_next_loader_alone(plain: DistDataset, caplog) -> None:
    """A loader whose constructor raised says nothing when it is collected."""
    create: Callable[[], None] = lambda: _make(plain, batch_size=0)  # noqa: E731
    for _ in range(3):
        with pytest.raises(ConfigError):
            create()
    assert "Exception ignored" not in caplog.text


def test_a_partition_without_its_peers() -> None:
    alone = TinyGraph.random(20, 60).partitions(2)[1]
    with pytest.raises(ConfigError, match=r"no process loaded partitions \[0\] of 2"):
        _make(alone)


def test_a_fanout_beyond_what_samplers_count(plain: DistDataset) -> None:
    with pytest.raises(ConfigError, match=r"num_neighbors\[1\] must be at most 2147483647"):
        _make(plain, num_neighbors=[2, 2**63])
