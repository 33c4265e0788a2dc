"""The static methods by which subclasses make the parts of a loader."""

import contextlib
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gigl_loader import BaseDistLoader, ConfigError, DistNeighborLoader
from gigl_loader.loader.build_parts import source_maker, worker_options_of
from gigl_loader.loader.deployment import job_ranks
from gigl_loader.loader.options import glt_config
from gigl_loader.loader.options.loader_options import LoaderOptions
from gigl_loader.runtime.memory import pinned
from gigl_loader.runtime.memory.pinned import PinMemoryError
from gigl_loader.testing import TinyGraph
from tests.support.glt import get_context, init_worker_group

HOW: dict[str, Any] = {"worker_concurrency": 3, "channel_size": "2MB"}


@pytest.fixture
def threads() -> Iterator[None]:
    """Put torch's number of threads back: it is the whole process's."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_a_channel_has_room_for_what_workers_have_under_way() -> None:
    options = BaseDistLoader.create_colocated_worker_options(
        dataset_num_partitions=1,
        num_workers=2,
        master_ip_address="127.0.0.1",
        master_port=4000,
        pin_memory=False,
        **HOW,
    )
    channel = BaseDistLoader.create_colocated_channel(options)
    assert (channel.capacity, channel.size) == (6, 2 * 10**6)
    channel.close()


@pytest.mark.usefixtures("threads", "group")
@pytest.mark.parametrize(("given", "expected"), [(None, 2), (1, 1), (3, 3)])
def test_joining_the_workers_group_sets_threads_and_finds_a_port(
    given: int | None, expected: int
) -> None:
    port = BaseDistLoader.initialize_colocated_sampling_worker(
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        node_world_size=1,
        master_ip_address="127.0.0.1",
        device=torch.device("cpu"),
        num_cpu_threads=given,
    )
    assert 0 < port < 2**16
    assert torch.get_num_threads() == expected
    context = get_context()
    assert context.is_worker()
    assert (context.rank, context.world_size) == (0, 1)


@pytest.mark.usefixtures("threads", "group")
def test_a_loader_agrees_on_no_port_as_nothing_listens_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Users' subclasses get one from the method of GiGL's name: a broadcast for each loader."""

    def refuse(*args: Any) -> None:
        raise AssertionError(args)

    monkeypatch.setattr(job_ranks, "free_port", refuse)
    monkeypatch.setattr(job_ranks, "broadcast_value", refuse)
    for num_workers in (0, 1):
        with DistNeighborLoader(
            TinyGraph.random(9, 20).dataset(), [2], num_workers=num_workers
        ) as loader:
            assert len(list(loader)) == 9


@pytest.mark.usefixtures("threads", "group")
def test_a_worker_group_of_another_size_is_joined_anew() -> None:
    """As an earlier job of this process left it, one of three; of the same size it stays."""
    for size in (3, 1):
        init_worker_group(size, size - 1, "somebody's")
        BaseDistLoader.initialize_colocated_sampling_worker(
            local_rank=0,
            local_world_size=1,
            node_rank=0,
            node_world_size=1,
            master_ip_address="127.0.0.1",
            device=torch.device("cpu"),
            num_cpu_threads=1,
        )
        context = get_context()
        assert (context.rank, context.world_size) == (0, 1)
        assert (context.group_name == "somebody's") == (size == 1), "a second loader leaves it"


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(("given", "expected"), [(None, 3), (1, 1)])
def test_a_loader_leaves_torchs_threads_as_they_are(
    num_workers: int, given: int | None, expected: int
) -> None:
    """Torchrun sets 1 and users theirs, for the whole process; a loader sets what it is given."""
    torch.set_num_threads(3)
    with DistNeighborLoader(
        TinyGraph.random(9, 20).dataset(),
        [2],
        num_workers=num_workers,
        num_cpu_threads=given,
        pin_memory_device=torch.device("cpu"),
    ) as loader:
        list(loader)
        assert torch.get_num_threads() == expected


@pytest.mark.usefixtures("threads", "group")
def test_on_a_gpu_torchs_threads_are_the_users() -> None:
    torch.set_num_threads(1)
    BaseDistLoader.initialize_colocated_sampling_worker(
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        node_world_size=1,
        master_ip_address="127.0.0.1",
        device=torch.device("cuda", 0),
        num_cpu_threads=3,
    )
    assert torch.get_num_threads() == 1


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"num_workers": 0}, "num_workers must be > 0 here"),
        ({"worker_concurrency": 33}, r"in \[1, 32\]"),
        ({"channel_size": "x"}, "channel_size must be bytes"),
        ({"prefetch_size": 0}, "prefetch_size must be"),
    ],
)
def test_a_graph_stores_options_are_checked_before_it_is_asked(how: dict, words: str) -> None:
    cluster = SimpleNamespace(
        num_storage_nodes=1, storage_cluster_master_ip="127.0.0.1", compute_cluster_world_size=1
    )
    told: Any = SimpleNamespace(cluster_info=cluster)  # cannot be asked for a port
    given = {"num_workers": 1, "prefetch_size": 4, **HOW, **how}
    with pytest.raises(ConfigError, match=words):
        BaseDistLoader.create_graph_store_worker_options(
            dataset=told, compute_rank=0, worker_key="one", **given
        )


def test_memory_that_cannot_be_pinned_is_said_and_used(monkeypatch, caplog) -> None:
    def refuse(address: int, nbytes: int, device: object) -> None:
        raise PinMemoryError(address, nbytes, 2, "too many bytes")

    monkeypatch.setattr(glt_config, "PinnedRange", refuse)
    assert glt_config.pin_if_possible(4096, 8) is None
    assert "batches stay unpinned" in caplog.text
    assert "too many bytes" in caplog.text


@pytest.mark.usefixtures("group")
def test_slots_are_pinned_for_the_device_of_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for the current one: each rank would open a context on GPU 0."""
    devices: list[torch.device | None] = []
    monkeypatch.setattr(pinned, "default_registry", devices.append)  # which pins nothing
    runtime = BaseDistLoader.resolve_runtime()
    given = LoaderOptions.of(num_neighbors=[2], num_workers=1, **HOW)
    for device in (torch.device("cuda", 3), torch.device("cpu")):
        dataset = TinyGraph.random(9, 20).dataset()
        make = source_maker(
            worker_options_of(given, runtime, device, dataset), given, device, dataset
        )
        assert isinstance(make, partial)
        with contextlib.closing(make.keywords["channel"]) as channel:
            channel.send({"x": torch.zeros(3)})
            channel.recv(60.0)
    assert devices == [torch.device("cuda", 3)]
