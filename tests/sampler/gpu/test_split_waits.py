"""A batch on a device that is split by its seeds: the host waits once for all parts of one size."""

from collections import Counter
from typing import Any

import pytest
import torch

from gigl_loader import DistABLPLoader
from gigl_loader.batch import splitting
from gigl_loader.batch.message import stays_on_host
from gigl_loader.loader.options import pad_shape
from tests.loader import digest_cases as cases
from tests.sampler.gpu.device_waits import waits_counted

SIZES: dict[str, dict[str, Any]] = {
    "nodes": {"nodes": 40, "edges": 41},
    "nodes, disjoint": {"nodes": 60, "edges": 58},
    "links, binary": {"nodes": 98, "edges": 82},
    "links, triplet": {"nodes": 70, "edges": 64},
    "anchors": {"nodes": 66, "edges": 62},
}


@pytest.mark.parametrize("name", SIZES)
def test_the_host_waits_for_counts_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, Counter[str]]] = []

    def counting(message: Any, *args: Any) -> Any:
        host = [tensor for field, tensor in message.items() if stays_on_host(field)]
        with waits_counted(host) as waits:
            parts = splitting.split_to_fit(message, *args)
        found.append((len(parts), waits))
        return parts

    monkeypatch.setattr(pad_shape, "split_to_fit", counting)
    case = cases.CASES[name]
    dataset = case.partition(0, 1)
    dataset.max_labels_per_anchor_node = 1 if case.kind is DistABLPLoader else None
    dataset = dataset.to("cpu", kernels="torch")
    with case.make(dataset, case.seeds(), num_workers=0, pad=SIZES[name]) as loader:
        list(loader)
    split = [(parts, waits.total()) for parts, waits in found if parts > 1]
    assert split, "a batch is larger than its shape"
    for parts, waits in split:
        # two halves, then halves of these: with the last one that fits, so many levels at most
        assert 1 <= waits <= min(parts - 1, 4), (parts, waits)
    assert all(not waits for parts, waits in found if parts == 1)


@pytest.mark.parametrize(
    "job",
    [
        lambda values: values[values > 0],
        lambda values: values.nonzero(),
        lambda values: values.unique(),
        lambda values: values.tolist(),
        lambda values: int(values.sum()),
        lambda values: bool(values.any()),
        lambda values: torch.arange(8),
    ],
)
def test_what_waits_is_counted(job: Any) -> None:
    values, host = torch.arange(8), torch.arange(8)
    with waits_counted([host]) as waits:
        values[values], values.cumsum(0), host.tolist()
        assert not waits.total()
        job(values)
    assert waits.total() == 1
