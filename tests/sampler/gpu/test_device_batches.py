"""Sampling on a device gives the batches of the CPU, bit for bit, and does not wait for the device.

The device is the CPU here, by both kinds of kernels: the code is the same, launched on no stream.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from gigl_loader import DistDataset, DistLinkNeighborLoader, DistNeighborLoader, partition_graph
from gigl_loader.dataset.placement import Placement
from gigl_loader.errors import ConfigError, SamplingError
from gigl_loader.sampler.gpu.kept_rows import KeptRows
from gigl_loader.sampler.options import FeatureStoreOptions
from gigl_loader.testing import batch_digest, run_ranks
from tests.loader import digest_cases as cases
from tests.loader.digest_cases import CASES
from tests.sampler.gpu import device_jobs
from tests.sampler.gpu.device_waits import no_launch_waits
from tests.support.sources import source_of

KNOWN = json.loads((Path(cases.__file__).parent / "digests.json").read_text())
REFUSED = {
    "nodes, ppr",
    "nodes, ppr tokens",
    "nodes, bidirectional",
    "subgraphs",
    "typed subgraphs",
    "nodes, adaptive by time",
    "typed nodes, adaptive, weighted",
    "typed links, adaptive, replace",
}
wide = pytest.mark.wide
ONE: dict[str, Any] = {"batch_size": 4, "seed": 5, "num_workers": 0}


SAME_DRAWS = {
    "nodes, out",
    "nodes, in the order of input",
    "nodes, in groups",
    "typed nodes, out",
    "links",
    "links, by time",
    "typed links, binary",
    "typed links, in groups",
    "anchors, in groups",
}
"""Kinds that ask kernels for what other kinds ask for, too: they have other edges or roots."""


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        pytest.param(name, kernels, marks=wide if kernels == "warp" and name in SAME_DRAWS else ())
        for name in sorted(set(CASES) - REFUSED)
        for kernels in ("torch", "warp")
    ],
)
def test_the_bits_of_the_cpu(name: str, kernels: Any) -> None:
    case = CASES[name]
    dataset = case.partition(0, 1).to("cpu", kernels=kernels)
    with no_launch_waits():
        assert cases.in_one_process(case, dataset, num_workers=0) == KNOWN[name]


@pytest.mark.parametrize("kernels", ["torch", "warp"])
@pytest.mark.parametrize(
    "name",
    [
        "nodes",
        "nodes, labor",
        "nodes, by time",
        "nodes, weighted",
        "typed nodes, disjoint",
        "links, binary",
    ],
)
def test_edges_on_the_host_give_the_same_bits(name: str, kernels: Any) -> None:
    case = CASES[name]
    dataset = case.partition(0, 1).to("cpu", kernels=kernels, edges="host", features="host")
    assert cases.in_one_process(case, dataset, num_workers=0) == KNOWN[name]


def test_what_finds_edges_stays_on_the_device() -> None:
    view = small().view()
    on_device, on_host = Placement(torch.device("cpu"), edges="host").nbytes(view)
    ends = [one for a in view.adjacency.values() for one in (a.indices, a.edge_ids)]
    assert on_host == sum(one.nbytes for one in ends if one is not None) > 0
    assert on_device + on_host == Placement(torch.device("cpu")).nbytes(view)[0]


def test_padded_batches_are_those_of_the_cpu() -> None:
    nodes, found = torch.arange(30), []
    for dataset in (small(), small().to("cpu", kernels="torch")):
        with DistNeighborLoader(dataset, [3, 2], nodes, **ONE, pad=True) as loader:
            found.append([batch_digest(batch) for batch in loader])
    assert found[0] == found[1]


@pytest.mark.multiprocess
def test_two_ranks_with_a_device_each(tmp_path: Path) -> None:
    names, ranks = ["nodes", "typed anchors", "links, triplet"], tmp_path / "ranks"
    ranks.mkdir()
    run_ranks(device_jobs.of_a_rank, tmp_path, names, world_size=2, tmp_path=ranks)
    for name in names:
        assert cases.read(tmp_path, name) == KNOWN[name], name


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_only_the_host_samples_is_refused(name: str) -> None:
    case = CASES[name]
    dataset = case.partition(0, 1).to("cpu", kernels="torch")
    with pytest.raises(ConfigError, match=r"is not sampled on a device.*dataset\.to\('cpu'\)"):
        case.make(dataset, case.seeds(), num_workers=0)


def small(**keywords: Any) -> DistDataset:
    return cases.partition(0, 1, typed=False, **keywords)


def test_features_on_the_host_and_batches_at_once() -> None:
    nodes = torch.arange(20)
    with DistNeighborLoader(small(), [3, 2], nodes, **ONE) as loader:
        known, at_once = [batch_digest(b) for b in loader], batch_digest(loader(nodes[:3]))
    dataset = small().to("cpu", kernels="torch", features="host")
    with DistNeighborLoader(dataset, [3, 2], nodes, **ONE) as loader:
        assert [batch_digest(batch) for batch in loader] == known
        assert batch_digest(loader(nodes[:3])) == at_once
        iterator = iter(loader)
        next(iterator)
        at = loader.state_dict()
    with DistNeighborLoader(dataset, [3, 2], nodes, **ONE, worker_concurrency=1) as loader:
        list(loader)
        loader.load_state_dict(at)
        rest = [batch_digest(batch) for batch in loader]
    assert len(rest) == 4
    dataset.to("cpu")
    with DistNeighborLoader(dataset, [3, 2], nodes, **ONE, worker_concurrency=1) as loader:
        loader.load_state_dict(at)
        assert [batch_digest(batch) for batch in loader] == rest


@pytest.mark.parametrize("kernels", ["torch", "warp"])
@pytest.mark.parametrize(
    ("name", "cache"),
    [
        pytest.param(name, cache, marks=() if name == "nodes" or cache == "40%" else wide)
        for name in ("nodes", "nodes, disjoint", "typed nodes", "links, binary", "typed anchors")
        for cache in ("5%", "40%", "100%")
    ],
)
def test_features_that_are_kept_have_the_same_bits(name: str, cache: str, kernels: Any) -> None:
    case = CASES[name]
    dataset = case.partition(0, 1).to("cpu", kernels=kernels, features="host", cache=cache)
    assert cases.in_one_process(case, dataset, num_workers=0) == KNOWN[name]


def test_rows_are_kept_until_their_next_use() -> None:
    """Little more rows come from the host than for a cache that knows all that comes."""
    nodes = torch.arange(cases.NODES)
    fetched, wanted = {}, []
    for cache in ("10%", "50%", "100%"):
        dataset = small().to("cpu", kernels="torch", features="host", cache=cache)
        with DistNeighborLoader(
            dataset, [4, 3], nodes, **ONE, shuffle=True, with_edge=False
        ) as loader:
            wanted = [batch.n_id.unique() for _ in range(3) for batch in loader]
            kept = source_of(loader).sampler.kept
            assert kept.hits + kept.misses == sum(one.numel() for one in wanted)
            fetched[cache] = kept.misses
    assert fetched["100%"] == torch.cat(wanted).unique().numel()  # each row once
    assert fetched["100%"] < fetched["50%"] < fetched["10%"] < sum(map(len, wanted))
    # Belady's rule over all three epochs is the least that any rule fetches
    assert fetched["50%"] < 1.3 * optimum([one.tolist() for one in wanted], cases.NODES // 2)
    # with few slots, a cache that is told each batch in its turn alone does not come as near
    assert fetched["10%"] < 1.3 * optimum([one.tolist() for one in wanted], cases.NODES // 10 + 1)


def optimum(batches: list[list[int]], slots: int) -> int:
    """Return the rows that a cache fetches by Belady's rule, which knows all that comes."""
    uses: dict[int, list[int]] = {}
    for number, ids in enumerate(batches):
        for one in ids:
            uses.setdefault(one, []).append(number)
    held: set[int] = set()
    fetched = 0
    for number, ids in enumerate(batches):
        fetched += len(set(ids) - held)
        later = {
            one: min((at for at in uses[one] if at > number), default=1 << 30)
            for one in held | set(ids)
        }
        held = set(sorted(later, key=later.__getitem__)[:slots])
    return fetched


@pytest.mark.parametrize("kernels", ["torch", "warp"])
@pytest.mark.parametrize(
    "how", [{}, {"disjoint": True}, {"replace": True}], ids=["merged", "trees", "replace"]
)
def test_no_id_is_sorted_on_the_host(
    how: dict[str, Any], kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids of kept rows are each there once, also where seeds, nodes of trees or edges repeat."""
    nodes = torch.cat([torch.arange(16), torch.arange(16).repeat_interleave(2)])
    plain, known = small(), []
    with DistNeighborLoader(plain, [4, 3], nodes, **ONE, with_edge=True, **how) as loader:
        known = [batch_digest(batch) for batch in loader]
        batch_size = loader.batch_size
    sizes, unique, add = list[int](), np.unique, KeptRows.add
    asked: list[Any] = []

    def sorting(ids: Any, **keywords: Any) -> Any:
        sizes.append(ids.size)
        return unique(ids, **keywords)

    def adding(kept: KeptRows, wanted: dict[Any, Any]) -> int:
        asked.extend(wanted.values())
        return add(kept, wanted)

    dataset = plain.to("cpu", kernels=kernels, features="host", cache="50%")
    with (
        monkeypatch.context() as patch,
        DistNeighborLoader(dataset, [4, 3], nodes, **ONE, with_edge=True, **how) as loader,
    ):
        patch.setattr(np, "unique", sorting)
        patch.setattr(KeptRows, "add", adding)
        assert [batch_digest(batch) for batch in loader] == known
    assert all(size <= batch_size for size in sizes), "the roots at most"
    assert len(asked) == 2 * len(known), "of nodes and of edges"
    assert all(unique(ids).size == ids.size for ids in asked)


def test_a_batch_that_fails_between_plan_and_rows_turns_the_cache_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its slots were planned for rows that never came: no later batch may read them."""
    nodes, rows, calls = torch.arange(cases.NODES), KeptRows.rows, iter(range(1000))

    def failing(self: KeptRows, *args: Any) -> torch.Tensor:
        if next(calls) == 5:
            raise RuntimeError("out of memory")
        return rows(self, *args)

    plain = small()
    with DistNeighborLoader(plain, [4, 3], nodes, **ONE) as loader:
        known = [batch_digest(batch) for _ in range(2) for batch in loader]
    monkeypatch.setattr(KeptRows, "rows", failing)
    dataset = plain.to("cpu", kernels="torch", features="host", cache="50%")
    with DistNeighborLoader(dataset, [4, 3], nodes, **ONE) as loader:
        with pytest.raises(SamplingError, match="out of memory"):
            list(loader)
        loader.set_epoch(0)
        assert [batch_digest(batch) for _ in range(2) for batch in loader] == known


def test_an_error_comes_in_its_turn() -> None:
    """Batches that were launched before the one that fails are handed out."""
    graph = Data(edge_index=torch.stack([torch.arange(12), torch.arange(12).roll(1)]), num_nodes=12)
    # node 11 has an edge to all: it has no strict negative
    full = torch.stack([torch.full((12,), 11), torch.arange(12)])
    graph.edge_index = torch.cat([graph.edge_index, full], 1)
    seeds = torch.stack([torch.arange(12), torch.arange(12).roll(1)])
    taken = []
    for kernels in (None, "torch"):
        dataset = DistDataset.from_pyg(graph).to("cpu", kernels=kernels)
        with DistLinkNeighborLoader(
            dataset,
            [2],
            seeds,
            batch_size=2,
            num_workers=0,
            seed=1,
            neg_sampling="triplet",
            strict=True,
        ) as loader:
            found: list[str] = []
            with pytest.raises(SamplingError, match="has no negative"):
                found.extend(batch_digest(batch) for batch in loader)
            taken.append(found)
    assert taken[0] == taken[1]
    assert len(taken[0]) == 5, "the last batch has the edge from node 11"


def test_an_epoch_that_is_broken_off_leaves_the_cache_right() -> None:
    nodes, plain, fetched = torch.arange(cases.NODES), small(), []
    with DistNeighborLoader(plain, [4, 3], nodes, **ONE) as loader:
        known = [batch_digest(batch) for epoch in range(2) for batch in loader]
    for is_broken in (False, True):
        dataset = plain.to("cpu", kernels="torch", features="host", cache="30%")
        with DistNeighborLoader(dataset, [4, 3], nodes, **ONE) as loader:
            if is_broken:
                next(iter(loader))
                loader.set_epoch(0)
            found = []
            for epoch in range(2):
                for number, batch in enumerate(loader):
                    found.append(batch_digest(batch))
                    if is_broken and not number and not epoch:
                        loader(nodes[:5])  # beside the epoch: the cache knows nothing of it
            kept = source_of(loader).sampler.kept
        assert found == known
        fetched.append(kept.misses)
    assert fetched[1] <= fetched[0], "no slot waits for a batch that does not come"


@pytest.mark.parametrize(
    "features", [{}, {"features": "host"}, {"features": "host", "cache": "50%"}]
)
def test_quantised_rows_are_widened(features: dict[str, Any], tmp_path: Path) -> None:
    rows = torch.linspace(-1, 1, 60).reshape(20, 3)
    edges = torch.stack([torch.arange(40) % 20, torch.arange(40) * 7 % 20])
    partition_graph(Data(x=rows, edge_index=edges), 1, tmp_path, feature_dtype="int8")
    loaded = DistDataset.load(tmp_path, 0)
    with DistNeighborLoader(loaded, [3], torch.arange(20), **ONE) as loader:
        known = [batch_digest(batch) for batch in loader]
    loaded.to("cpu", kernels="torch", **features)
    with DistNeighborLoader(loaded, [3], torch.arange(20), **ONE) as loader:
        batches = list(loader)
        sampler = source_of(loader).sampler
        stored = [] if sampler.kept is None else list(sampler.kept._slots.values())
        view = sampler.graph.view
    for rows in (*(one.values for one in view.node_features.values()), *stored):
        assert rows.dtype == torch.int8, "small until they are in a batch"
    assert [batch_digest(batch) for batch in batches] == known
    assert batches[0].x.dtype == torch.float32


def test_mistakes_are_named() -> None:
    nodes = torch.arange(8)
    with pytest.raises(ConfigError, match="torch finds 0 CUDA devices"):
        small().to("cuda:3") if not torch.cuda.is_available() else small().to("cuda:99")
    with pytest.raises(ConfigError, match="no torch device"):
        small().to("gpu")
    with pytest.raises(ConfigError, match=r'kernels must be None, "torch" or "warp"'):
        small().to("cpu", kernels="cuda")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigError, match='features must be "device" or "host"'):
        small().to("cpu", kernels="torch", features="disk")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigError, match='edges must be "own", "all" or "host"'):
        small().to("cpu", kernels="torch", edges="whole")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ConfigError, match='is for features="host"'):
        small().to("cpu", kernels="torch", cache="20%")
    with pytest.raises(ConfigError, match="cache as a share must be above 0%"):
        small().to("cpu", kernels="torch", features="host", cache="0%")
    with pytest.raises(ConfigError, match="on the CPU there is one memory"):
        small().to("cpu", cache="20%", features="host")
    with pytest.raises(ConfigError, match=r"edges='host' are for a GPU: on the CPU"):
        small().to("cpu", edges="host")
    placed = small().to("cpu", kernels="torch")
    with pytest.raises(ConfigError, match=r"add num_workers=0"):
        DistNeighborLoader(placed, [2], nodes, batch_size=4)
    half = cases.partition(0, 2, typed=False).to("cpu", kernels="torch")
    with pytest.raises(ConfigError, match='add exchange="collective"'):
        DistNeighborLoader(half, [2], nodes, **ONE)
    half.to("cpu", kernels="torch", features="host", cache="20%")
    with pytest.raises(ConfigError, match=r"0 of 2 .* leave cache= out of dataset\.to"):
        DistNeighborLoader(half, [2], nodes, **ONE, exchange="collective")
    store = FeatureStoreOptions("tests.loader.digest_cases.Case")
    bare = DistDataset.from_pyg(Data(edge_index=cases.edges(2), num_nodes=cases.NODES))
    with pytest.raises(ConfigError, match="feature_store is not sampled on a device"):
        DistNeighborLoader(bare.to("cpu", kernels="torch"), [2], nodes, **ONE, feature_store=store)


def test_a_batch_that_finds_no_room_is_refused_before_it_is_drawn() -> None:
    hub = 40_000
    star = torch.stack([torch.arange(1, hub), torch.zeros(hub - 1, dtype=torch.int64)])
    data = Data(edge_index=torch.cat([star, star.flip(0)], 1), num_nodes=hub)
    dataset = DistDataset.from_pyg(data).to("cpu", kernels="torch")
    with pytest.raises(ConfigError, match=r"hop 2 .* largest degree 39,999"):
        DistNeighborLoader(dataset, [-1, -1], torch.arange(64), **ONE | {"batch_size": 64})
