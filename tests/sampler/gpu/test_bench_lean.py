"""The lean layer of the GPU benchmark is PyG's, and its whole step is the steps of a plain loop."""

import importlib
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_geometric.nn import GATConv

FOLDER = Path(__file__).parents[3] / "examples" / "benchmarks" / "gpu"


@pytest.fixture
def lean(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("_lean")
    sys.modules.pop("_lean", None)


def _results(layer: Any, given: Any, ends: Tensor) -> list[Tensor]:
    """Return the result of a layer, and the gradients of rows and parameters."""
    rows = [given] if isinstance(given, Tensor) else list(given)
    rows = [one.clone().requires_grad_() for one in rows]
    layer.zero_grad()
    out = layer(rows[0] if len(rows) == 1 else tuple(rows), ends)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return [out, *(one.grad for one in rows), *(one.grad for one in layer.parameters())]


@pytest.mark.parametrize("edges_at_once", [7, 1 << 15])
@pytest.mark.parametrize("num_edges", [0, 1, 90])
@pytest.mark.parametrize("kind", ["two types", "one type"])
def test_the_layer_is_that_of_pyg(
    lean: ModuleType, kind: str, num_edges: int, edges_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lean, "EDGES", edges_at_once)
    torch.manual_seed(num_edges)
    known = GATConv((8, 8), 4, heads=3, add_self_loops=False)
    torch.nn.init.uniform_(known.bias)
    layer = lean.LeanGATConv((8, 8), 4, heads=3, add_self_loops=False)
    layer.load_state_dict(known.state_dict())
    sources, targets = torch.randn(20, 8), torch.randn(12, 8)
    given = (sources, targets) if kind == "two types" else sources
    # the last targets have no edge
    ends = torch.stack([torch.randint(20, (num_edges,)), torch.randint(10, (num_edges,))])
    monkeypatch.setattr(layer.lin_dst, "forward", None)  # no row of a target is transformed
    pairs = zip(_results(known, given, ends), _results(layer, given, ends), strict=True)
    for wanted, found in pairs:
        assert wanted.dtype == torch.float32
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_no_message_is_kept_for_the_way_back(lean: ModuleType) -> None:
    kept: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    ends = torch.randint(20, (2, 5000))
    for kind, keeps in ((GATConv, True), (lean.LeanGATConv, False)):
        kept.clear()
        layer = kind((8, 8), 16, heads=4, add_self_loops=False)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            layer(torch.randn(20, 8), ends)
        assert (max(kept) >= 5000 * 16 * 4) == keeps


class _Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x: dict[str, Tensor], edges: dict[str, Tensor], hops: Any) -> Tensor:
        assert hops == "hops"
        rows: Tensor = self.layer(x["a"])
        return rows.index_add(0, edges["e"][1], rows[edges["e"][0]])


def _trained(lean: ModuleType, device: str, *, whole: bool) -> tuple[list[float], list[Tensor]]:
    torch.manual_seed(3)
    model = _Model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), capturable=device == "cuda")
    step = lean.WholeStep(model, optimizer, "hops", 5)
    losses = []
    for number in range(8):
        made = torch.Generator().manual_seed(number)
        x = {"a": torch.randn(9, 4, generator=made).to(device)}
        edges = {"e": torch.randint(9, (2, 12), generator=made).to(device)}
        labels = torch.randint(3, (5,), generator=made).to(device)
        losses.append(float((step if whole else step.launch)(x, edges, labels)))
    return losses, [one.detach().cpu() for one in model.parameters()]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_whole_step_trains_as_its_launches_do(lean: ModuleType, device: str) -> None:
    """On CUDA the fourth step is captured, and it and those behind it are replays."""
    known, found = (_trained(lean, device, whole=whole) for whole in (False, True))
    assert known[0] == pytest.approx(found[0], rel=1e-5)
    assert known[0][-1] != known[0][0]
    torch.testing.assert_close(found[1], known[1])


def test_a_step_that_is_replayed_reads_its_own_batch(
    lean: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a pretended GPU, whose graph launches the captured step again, on the same memory."""
    launched: list[tuple[Any, ...]] = []

    class Pretended(torch.Tensor):
        is_cuda = True

    def launch(self: Any, *given: Any) -> Tensor:
        launched.append(given)
        return torch.zeros(1)

    class Graph:
        def replay(self) -> None:
            x, edges, labels = launched[-1]
            replayed.append((float(x["a"][0]), int(edges["e"][0]), int(labels[0])))

    class Stream:
        def wait_stream(self, other: object) -> None: ...

    replayed: list[tuple[float, int, int]] = []
    monkeypatch.setattr(lean.WholeStep, "launch", launch)
    for name, value in {
        "CUDAGraph": Graph,
        "Stream": Stream,
        "current_stream": Stream,
        "stream": lambda stream: nullcontext(),
        "graph": lambda graph, capture_error_mode: nullcontext(),
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    step = lean.WholeStep(None, None, None, 1)
    for number in range(6):
        labels = torch.tensor([number + 2]).as_subclass(Pretended)
        step({"a": torch.tensor([number + 0.5])}, {"e": torch.tensor([number + 1])}, labels)
    assert len(launched) == lean.WARM_UP + 1
    assert replayed == [(number + 0.5, number + 1, number + 2) for number in (3, 4, 5)]
