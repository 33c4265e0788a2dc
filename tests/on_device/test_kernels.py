"""Draws and labels on a device: the bits of the compiled kernels of the CPU."""

import numpy as np
import pytest
import torch
from device_questions import KEYS, Question, questions
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.on_device.device_kernels import DeviceLabels, Kernels
from gigl_loader.on_device.torch_kernels import TorchKernels
from gigl_loader.on_device.torch_numbers import mix, signed
from gigl_loader.on_device.warp_kernels import WarpKernels
from gigl_loader.sampler import compiled
from gigl_loader.sampler.nodes import NodeLabels, TreeLabels

CPU = torch.device("cpu")
ALL = [pytest.param(TorchKernels(CPU), id="torch"), pytest.param(WarpKernels(CPU), id="warp")]


@pytest.mark.parametrize("kernels", ALL)
@settings(max_examples=400, deadline=None)
@given(question=questions(), data=st.data())
def test_draws_are_those_of_the_cpu(
    kernels: Kernels, question: Question, data: st.DataObject
) -> None:
    gaps = data.draw(st.lists(st.integers(0, question.ids.size), max_size=4))
    question.check(kernels, np.insert(np.zeros(question.ids.size, bool), gaps, True))


@given(value=KEYS)
def test_shifts_pull_in_no_sign(value: int) -> None:
    found = mix(torch.tensor([signed(value)]))
    assert found.tolist() == [signed(int(compiled.mix(np.uint64(value))))]


SOME_IDS = st.lists(st.integers(0, 12) | st.integers(2**40, 2**40 + 2), max_size=20)


@pytest.mark.parametrize("kernels", ALL)
@settings(max_examples=150, deadline=None)
@given(roots=SOME_IDS, more=st.lists(SOME_IDS, max_size=4), data=st.data())
def test_labels_are_those_of_the_cpu(
    kernels: Kernels, roots: list[int], more: list[list[int]], data: st.DataObject
) -> None:
    wanted = NodeLabels()
    labels = _labels(sum(map(len, [roots, *more])) + data.draw(st.integers(0, 5)))
    kernels.append(labels, torch.tensor(roots, dtype=torch.int64))
    wanted.append(np.array(roots, np.int64))
    for ids in more:
        valid = np.array(data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))))
        _check_label(kernels, labels, np.array(ids, np.int64), valid.astype(bool), wanted)
    assert int(labels.count) == wanted.count
    assert labels.keys[: wanted.count].tolist() == wanted.nodes.tolist()
    assert (labels.keys[wanted.count :] == -1).all(), "what is unused stays so"


def _labels(capacity: int) -> DeviceLabels:
    return DeviceLabels(torch.full((capacity,), -1), torch.zeros((), dtype=torch.int64))


def _check_label(
    kernels: Kernels, labels: DeviceLabels, ids: np.ndarray, valid: np.ndarray, wanted: NodeLabels
) -> None:
    found = kernels.label(labels, torch.from_numpy(ids), torch.from_numpy(valid))
    assert found.dtype == torch.int64
    assert found[torch.from_numpy(valid)].tolist() == wanted.label(ids[valid]).tolist()
    assert (found[torch.from_numpy(~valid)] == -1).all()


@pytest.mark.parametrize("kernels", ALL)
@settings(max_examples=60, deadline=None)
@given(data=st.data(), bits=st.sampled_from([4, 40]))
def test_labels_of_trees_are_those_of_the_cpu(
    kernels: Kernels, data: st.DataObject, bits: int
) -> None:
    num_trees = data.draw(st.integers(1, 5))
    places = st.tuples(st.integers(0, num_trees - 1), st.integers(0, 9))
    calls = data.draw(st.lists(st.lists(places, max_size=25), max_size=4))
    wanted, labels = TreeLabels(bits), _labels(sum(map(len, calls)) + num_trees)
    roots = np.arange(num_trees) << bits
    wanted.append(roots)
    kernels.append(labels, torch.from_numpy(roots))
    for call in calls:
        trees, ids = np.array(call, np.int64).reshape(-1, 2).T.copy()
        found = kernels.label(
            labels, torch.from_numpy(trees << bits | ids), torch.ones(len(call), dtype=torch.bool)
        )
        assert found.tolist() == wanted.label(ids, trees, num_trees).tolist()
    assert labels.keys[: int(labels.count)].tolist() == wanted.nodes.tolist()
