"""Which deployment the parts of a loader are of, and the role that a process needs for it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gigl_loader import BaseDistLoader, ConfigError, UsageError, WrongTypeError
from gigl_loader.loader.deployment.process_role import check_context, check_deployment, the_producer
from gigl_loader.sources.in_process.in_process_source import InProcessSource
from gigl_loader.testing import TinyGraph
from tests.support.glt import (
    CollocatedDistSamplingWorkerOptions,
    NodeSamplerInput,
    RemoteDistSamplingWorkerOptions,
)


def _parts(is_remote: bool) -> dict[str, Any]:
    if is_remote:
        options = RemoteDistSamplingWorkerOptions.__new__(RemoteDistSamplingWorkerOptions)
        return {
            "dataset": SimpleNamespace(fetch_node_ids=None),
            "sampler_input": [],
            "worker_options": options,
            "producer": lambda: 1,
        }
    return {
        "dataset": DATASET,
        "sampler_input": NodeSamplerInput(DATASET.node_ids, None),
        "worker_options": CollocatedDistSamplingWorkerOptions("127.0.0.1", 0),
        "producer": InProcessSource.__new__(InProcessSource),
    }


DATASET = TinyGraph.random(5, 9).dataset()


def test_parts_of_one_deployment_tell_which() -> None:
    assert check_deployment(**_parts(True)) is True
    assert check_deployment(**_parts(False)) is False


@pytest.mark.parametrize("part", ["dataset", "sampler_input", "worker_options", "producer"])
@pytest.mark.parametrize("is_remote", [True, False])
def test_one_part_of_the_other_deployment_is_named(part: str, is_remote: bool) -> None:
    mixed = {**_parts(is_remote), part: _parts(not is_remote)[part]}
    kind = "colocated" if is_remote else "graph store"
    with pytest.raises(WrongTypeError, match=f"'{part}': '{kind}'"):
        check_deployment(**mixed)
    with pytest.raises(WrongTypeError, match=f"'{part}': 'neither'.*'{part}': 'type'"):
        check_deployment(**{**mixed, part: InProcessSource})  # the class in place of an object


@pytest.mark.parametrize("role", [None, "worker", "client"])
@pytest.mark.parametrize("is_remote", [True, False])
def test_a_loader_needs_its_role(role: str | None, is_remote: bool) -> None:
    context: Any = None
    if role is not None:
        context = SimpleNamespace(
            is_client=lambda: role == "client", is_worker=lambda: role == "worker"
        )
    if role == ("client" if is_remote else "worker"):
        check_context(is_remote, context)
        return
    first = "init_compute_process" if is_remote else "initialize_colocated_sampling_worker"
    with pytest.raises(UsageError, match=first):
        check_context(is_remote, context)


def test_the_old_name_of_the_producer() -> None:
    one: Any = object()
    other: Any = object()
    assert the_producer(one, None) is one
    with pytest.warns(DeprecationWarning, match="`sampler` was renamed"):
        assert the_producer(None, other) is other
    with pytest.raises(ConfigError, match="drop `sampler`"):
        the_producer(one, other)
    none: Any = None
    with (
        pytest.warns(DeprecationWarning, match="was renamed") as told,
        pytest.raises(WrongTypeError, match="one deployment"),
    ):
        BaseDistLoader(none, none, none, none, none, none, none, sampler=other)
    assert told[0].filename == __file__


def test_parts_of_two_deployments() -> None:
    none: Any = None  # not looked at yet
    with pytest.raises(WrongTypeError, match=r"one deployment.*dataset.*producer"):
        BaseDistLoader(DATASET, [], none, None, None, torch.device("cpu"), none, lambda: 1)
