"""What the user gave, checked as a whole: which keyword goes with which, before anything starts."""

from typing import Any

import pytest
import torch

from gigl_loader import (
    ConfigError,
    DistributedContext,
    KHopNeighborSamplerOptions,
    PPRSamplerOptions,
)
from gigl_loader.loader.options.loader_options import LoaderOptions, checked_device
from tests.support.conditions import Gpus


def _args(num_neighbors: Any = (2,), **how: Any) -> LoaderOptions:
    return LoaderOptions.of(num_neighbors=list(num_neighbors), **how)


def test_what_was_left_out_has_its_default() -> None:
    args = _args(batch_size=7, disjoint=True)
    assert (args.batch_size, args.num_workers) == (7, 1)
    assert args.expansion.disjoint is True
    options = args.source_options()
    assert options.expansion is args.expansion
    assert _args(seed=5, timeout=9.0).source_options().seed == 5


def test_keywords_of_the_expansion_are_beside_the_others() -> None:
    found = LoaderOptions.of(num_neighbors=[2], batch_size=3, seed=4, time_window=2, time_attr="t")
    assert (found.batch_size, found.seed, found.expansion.time_window) == (3, 4, 2)
    assert found == _args(batch_size=3, seed=4, time_window=2, time_attr="t")


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, False),
        ({"num_workers": 0}, True),
        ({"exchange": "collective"}, True),
        ({"exchange": "collective", "num_workers": 0}, True),
        ({"num_workers": 3}, False),
    ],
)
def test_who_samples(how: dict[str, Any], expected: bool) -> None:
    assert _args(**how).in_process is expected


def test_naming_weights_asks_for_them() -> None:
    assert not _args().is_weighted
    assert _args(weight_attr="w").is_weighted
    assert _args(with_weight=True).is_weighted


def test_scores_decide_how_far_a_push_goes() -> None:
    assert _args([], sampler_options=PPRSamplerOptions()).num_neighbors == [1]
    same = KHopNeighborSamplerOptions([2])
    assert _args([2], sampler_options=same).num_neighbors == [2]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"batch_size": 0}, "batch_size must be an integer > 0"),
        ({"shuffle": "False"}, "shuffle must be True, False or"),
        ({"drop_last": 1}, "drop_last must be True or False"),
        ({"with_weight": None}, "with_weight must be True or False"),
        ({"exchange": "rpc"}, 'must be "workers" or "collective", got \'rpc\''),
        ({"exchange": "collective", "num_workers": 2}, "num_workers=2 processes have nothing to"),
        ({"num_workers": 0, "worker_init_fn": print}, "worker_init_fn is for sampling processes"),
        ({"num_workers": False}, "num_workers must be an integer >= 0, got False"),
        ({"num_workers": 0, "worker_concurrency": 0}, "worker_concurrency must be"),
        ({"weight_attr": "w", "time_attr": "t"}, "with_weight and time_attr cannot be combined"),
        ({"device_prefetch": 0}, "device_prefetch must be an integer > 0"),
        ({"shard": "rank"}, 'shard must be "machine", "world" or "none"'),
        ({"shard": "world", "in_order": False}, "in_order=False"),
        ({"shard": "world", "context": DistributedContext("h", 0, 1)}, "leave context out"),
        ({"channel_size": "much"}, "channel_size must be bytes above 0"),
        ({"remote_cache": "lots"}, r"remote_cache must be .* such as \"20%\""),
        ({"num_cpu_threads": 0}, "num_cpu_threads must be an integer > 0"),
        ({"num_workers": 0, "remote_cache": "1GB"}, "is filled by sampling workers"),
        ({"pin_memory_device": "gpu"}, "pin_memory_device='gpu' is no torch device"),
        ({"device": "gpu"}, "device='gpu' is no torch device"),
        (
            {"device": "cpu", "pin_memory_device": "cpu:1"},
            "the second is GiGL's name for the first",
        ),
        ({"prefetch_size": 0}, "prefetch_size must be an integer > 0"),
        ({"sampler_options": KHopNeighborSamplerOptions([3])}, r"=\[2\] and .*=\[3\] differ"),
    ],
)
def test_values_that_cannot_work_together(how: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _args(**how)


def test_where_batches_go(gpus: Gpus) -> None:
    assert _args().batch_device(3) == torch.device("cpu")
    with pytest.raises(ConfigError, match="torch finds 0 CUDA devices here"):
        checked_device("device", "cuda")
    gpus += [0, 0]
    assert [_args().batch_device(rank).index for rank in range(4)] == [0, 1, 0, 1]
    assert _args(pin_memory_device=torch.device("cpu")).batch_device(1) == torch.device("cpu")
    assert _args(pin_memory_device="cuda:1").batch_device(0) == torch.device("cuda", 1)
    assert _args(device="cuda:1").batch_device(0) == torch.device("cuda", 1)
    assert _args(device="cuda").batch_device(1) == torch.device("cuda", 0), "the current one"
    assert _args(device="cuda:1", pin_memory_device=torch.device("cuda", 1)).device == "cuda:1"
    checked_device("device", "cuda:1")
    with pytest.raises(ConfigError, match="'cuda:2', but torch finds 2"):
        checked_device("device", "cuda:2")
