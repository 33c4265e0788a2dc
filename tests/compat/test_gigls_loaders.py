"""GiGL's own loaders run on `BaseDistLoader`, changed in nothing but the root of their imports.

With ``GIGL_REPOSITORY`` in the environment (a git directory with commit fee4ba50), their files are
read from there; `gigl_style`, a text of our own with the same calls, always runs.
"""

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import FileStore
from torch_geometric.data import Data, HeteroData

from gigl_loader import (
    DEFAULT_HOMOGENEOUS_EDGE_TYPE,
    DEFAULT_HOMOGENEOUS_NODE_TYPE,
    ABLPInputNodes,
    DistABLPLoader,
    DistDataset,
    DistNeighborLoader,
    GraphStoreInfo,
    PPRSamplerOptions,
    RemoteDistDataset,
)
from gigl_loader.testing import batch_digest, run_cluster
from tests.compat import gigl_style
from tests.support.glt import available

COMMIT = "fee4ba5047cf8d066d04344690b41725a312c711"
REPOSITORY = os.environ.get("GIGL_REPOSITORY")
HOW: dict[str, Any] = {
    "num_workers": 1,
    "batch_size": 10,
    "pin_memory_device": torch.device("cpu"),
    "channel_size": "64MB",
    "process_start_gap_seconds": 0.0,
}
SEEDS = torch.arange(50)
NODE, EDGE = DEFAULT_HOMOGENEOUS_NODE_TYPE, DEFAULT_HOMOGENEOUS_EDGE_TYPE


class _Shaped:
    """jaxtyping's ``Int64[Tensor, "names of axes"]``."""

    def __class_getitem__(cls, item: Any) -> Any:
        return item[0]


_STUBS: dict[str, dict[str, Any]] = {
    "gigl.common.logger": {"Logger": lambda *_: logging.getLogger("gigl")},
    "gigl.src.common.types.graph_data": {"NodeType": str, "EdgeType": tuple},
    "gigl.utils.data_splitters": {"get_labels_for_anchor_nodes": gigl_style.labels_of_anchors},
    "gigl.utils.sampling": {"ABLPInputNodes": ABLPInputNodes},
    "jaxtyping": {"Int64": _Shaped},
}
"""What their files import from elsewhere than ``gigl.distributed`` and ``gigl.types``."""


def _stub(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(names, __path__=[])
    monkeypatch.setitem(sys.modules, name, module)
    parent, _, last = name.rpartition(".")
    if parent:
        above = sys.modules[parent] if parent in sys.modules else _stub(monkeypatch, parent)
        setattr(above, last, module)
    return module


def _read_theirs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    if REPOSITORY is None:
        pytest.skip("GIGL_REPOSITORY names no repository of GiGL's")
    if not available:
        pytest.skip("GiGL's files import graphlearn-torch, which is not installed")
    for name, names in _STUBS.items():
        _stub(monkeypatch, name, **names)
    found = ModuleType("theirs")
    for file in ("distributed_neighborloader", "dist_ablp_neighborloader"):
        path = f"{COMMIT}:gigl/distributed/{file}.py"
        show = ["git", "-C", REPOSITORY, "show", path]
        text = subprocess.run(show, check=True, capture_output=True, text=True).stdout
        text = re.sub(r"\bgigl\.distributed\b|\bgigl(?=\.types\.)", "gigl_loader", text)
        exec(compile(text, path, "exec"), vars(found))
    return found


@pytest.fixture(params=["our text", "GiGL's files"])
def loaders(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    return gigl_style if request.param == "our text" else _read_theirs(monkeypatch)


@pytest.fixture
def _group(tmp_path: Path) -> Iterator[None]:
    """GiGL's loaders need a process group."""
    store = FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def _homogeneous(*, labels: bool) -> HeteroData | Data:
    draw = torch.Generator().manual_seed(1)
    edges = torch.randint(100, (2, 600), generator=draw)
    rows = torch.rand(100, 4, generator=draw)
    if not labels:
        return Data(x=rows, edge_index=edges)
    graph = HeteroData()
    graph[NODE].x, graph[EDGE].edge_index = rows, edges
    positives = torch.stack([SEEDS.repeat(2), torch.randint(100, (100,), generator=draw)])
    graph[NODE, f"{EDGE[1]}_gigl_positive", NODE].edge_index = positives
    return graph


def _typed(*, labels: bool) -> HeteroData:
    draw = torch.Generator().manual_seed(2)
    graph = HeteroData()
    graph["u"].x = torch.rand(60, 3, generator=draw)
    graph["v"].x = torch.rand(40, 2, generator=draw)
    ends = torch.randint(60, (400,), generator=draw), torch.randint(40, (400,), generator=draw)
    graph["u", "to", "v"].edge_index = torch.stack(ends)[:, :200]
    graph["v", "to", "u"].edge_index = torch.stack(ends[::-1])[:, 200:]
    graph["v", "to", "u"].edge_attr = torch.rand(200, 2, generator=draw)
    for sign in ("positive", "negative") if labels else ():
        ends = SEEDS.repeat(2), torch.randint(40, (100,), generator=draw)
        graph["u", f"to_gigl_{sign}", "v"].edge_index = torch.stack(ends)
    return graph


def _check_same(theirs: Any, ours: Any, *of_dataset: Any, **how: Any) -> None:
    """Compare an epoch with that of our loader with the same ``seed``."""
    try:
        got = [batch_digest(batch) for batch in theirs]
        seed = theirs._source.source_options.seed
    finally:
        theirs.shutdown()
    with ours(*of_dataset, seed=seed, **HOW, **how) as loader:
        assert got == [batch_digest(batch) for batch in loader]
    assert len(got) == 5


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("sampler", [None, PPRSamplerOptions(max_ppr_nodes=5)], ids=["hops", "ppr"])
@pytest.mark.parametrize("kind", ["homogeneous", "labeled", "typed"])
def test_the_neighbour_loader_yields_what_ours_yields(
    loaders: Any, kind: str, sampler: Any, edge_dir: Any
) -> None:
    graph = _typed(labels=False) if kind == "typed" else _homogeneous(labels=kind == "labeled")
    dataset = DistDataset.from_pyg(graph, edge_dir=edge_dir)
    seeds = ("u", SEEDS) if kind == "typed" else SEEDS
    theirs = loaders.DistNeighborLoader(dataset, [3, 2], seeds, sampler_options=sampler, **HOW)
    _check_same(theirs, DistNeighborLoader, dataset, [3, 2], seeds, sampler_options=sampler)


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("kind", ["labeled", "typed"])
@pytest.mark.parametrize("as_edge_index", [True, False], ids=["edge index", "dict"])
@pytest.mark.filterwarnings("ignore:The ragged dictionary ABLP label output:FutureWarning")
def test_the_ablp_loader_yields_what_ours_yields(
    loaders: Any, kind: str, edge_dir: Any, as_edge_index: bool
) -> None:
    graph = _typed(labels=True) if kind == "typed" else _homogeneous(labels=True)
    dataset = DistDataset.from_pyg(graph, edge_dir=edge_dir)
    seeds = ("u", SEEDS) if kind == "typed" else SEEDS
    how: dict[str, Any] = {"use_label_edge_index_output": as_edge_index}
    if kind == "typed":
        how["supervision_edge_type"] = ("u", "to", "v")
    theirs = loaders.DistABLPLoader(dataset, [3, 2], seeds, **HOW, **how)
    _check_same(theirs, DistABLPLoader, dataset, [3, 2], seeds, **how)


def _use_store(info: GraphStoreInfo, rank: int, is_theirs: bool) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        loaders: Any = _read_theirs(monkeypatch) if is_theirs else gigl_style
        dataset = RemoteDistDataset(info, rank)
        seeds = {server: ids[:25] for server, ids in dataset.fetch_node_ids().items()}
        how = {**HOW, "batch_size": 5}
        theirs = loaders.DistNeighborLoader(dataset, [3, 2], seeds, **how)
        try:
            got = [batch_digest(batch) for batch in theirs]
            seed = theirs._source.source_options.seed
        finally:
            theirs.shutdown()
        with DistNeighborLoader(dataset, [3, 2], seeds, seed=seed, **how) as loader:
            assert got == [batch_digest(batch) for batch in loader]
        assert len(got) == 10


def _partition(rank: int, count: int) -> DistDataset:
    book = torch.arange(100) * count // 100
    graph = _homogeneous(labels=False)
    return DistDataset.from_pyg(
        graph, partition_book=book, partition_idx=rank, num_partitions=count
    )


@pytest.mark.multiprocess
def test_the_neighbour_loader_yields_what_ours_yields_from_a_store(
    loaders: Any, tmp_path: Path
) -> None:
    is_theirs = loaders is not gigl_style
    run_cluster(_use_store, is_theirs, dataset=_partition, tmp_path=tmp_path, servers=2, clients=1)
