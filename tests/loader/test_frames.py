"""``tf``, rows of mixed types: in every deployment those of the graph, by the batch's own ids."""

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_frame import TensorFrame, stype
from torch_geometric.data import Data, HeteroData

from gigl_loader import (
    ConfigError,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    TokenOptions,
    full_graph_inference,
    padding_sizes,
    partition_graph,
)
from gigl_loader.inference.full_graph import full_graph
from gigl_loader.loader.options.glt_config import create_sampling_config
from gigl_loader.testing import batch_digest, check_same_batches, run_cluster, run_ranks
from tests.loader import frame_jobs
from tests.loader.frame_jobs import COUNTS, HOW
from tests.support.frames import EDGE, KINDS, check_rows, random_frame, same, shop

pytestmark = pytest.mark.usefixtures("group")
USERS = ("user", torch.arange(23))


def _loader(dataset: DistDataset, **how: Any) -> DistNeighborLoader:
    return DistNeighborLoader(dataset, [3, 2], USERS, **{"num_workers": 0, **HOW, **how})


# --- what a graph may have ------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    kinds=st.lists(st.sampled_from(KINDS), unique=True),
    columns=st.integers(1, 3),
    num_nodes=st.integers(1, 12),
    seed=st.integers(0, 99),
)
def test_a_homogeneous_graph_of_any_columns(
    kinds: list[str], columns: int, num_nodes: int, seed: int
) -> None:
    frame = random_frame(num_nodes, seed, kinds, columns)
    if not kinds:  # it only says how many nodes there are
        frame = TensorFrame({}, {}, num_rows=num_nodes)
    ends = torch.randint(0, num_nodes, (2, 20), generator=torch.Generator().manual_seed(seed))
    dataset = DistDataset.from_pyg(Data(edge_index=ends, tf=frame))
    with DistNeighborLoader(dataset, [2], num_workers=0, batch_size=3) as loader:
        for batch in loader:
            assert len(batch.tf) == batch.num_nodes == batch.n_id.numel()
            assert same(batch.tf, frame[batch.n_id])
            assert not [name for name in batch.keys() if name.startswith("tf-")]  # noqa: SIM118


def test_rows_of_the_edges_of_a_homogeneous_graph() -> None:
    frame = random_frame(40, 1)
    ends = torch.randint(0, 9, (2, 40), generator=torch.Generator().manual_seed(1))
    dataset = DistDataset.from_pyg(Data(x=torch.zeros(9, 1), edge_index=ends, tf=frame))
    with DistNeighborLoader(dataset, [2, 2], num_workers=0, batch_size=3) as loader:
        for batch in loader:
            assert same(batch.tf, frame[batch.e_id])


@pytest.mark.parametrize("edge_dir", ["in", "out"])
def test_every_type_in_both_directions(edge_dir: Any) -> None:
    graph = shop()
    dataset = DistDataset.from_pyg(graph, edge_dir=edge_dir)
    assert set(dataset.schema.frames) == {"user", "item", "user__buys__item"}
    assert "tf-" not in repr(dataset.schema)
    for how in ({}, {"num_workers": 2}, {"disjoint": True}):
        with _loader(dataset, **how) as loader:
            for batch in loader:
                if edge_dir == "out":  # the same edges by their reversed name
                    assert same(
                        batch["item", "rev_buys", "user"].tf,
                        graph[EDGE].tf[batch["item", "rev_buys", "user"].e_id],
                    )
                else:
                    check_rows(batch, graph)


def test_types_that_are_not_reached_have_empty_rows_of_the_same_columns() -> None:
    graph = shop()
    with DistNeighborLoader(
        DistDataset.from_pyg(graph), [1], ("shop", torch.arange(2)), num_workers=0
    ) as loader:
        batch = next(iter(loader))
    for store, of in ((batch["user"], "user"), (batch[EDGE], EDGE)):
        assert len(store.tf) == 0
        assert store.tf.col_names_dict == graph[of].tf.col_names_dict
        for kind, values in store.tf.feat_dict.items():
            assert values.dtype == graph[of].tf.feat_dict[kind].dtype
            assert len(values) == 0


def test_batches_without_edge_ids_have_no_rows_of_edges() -> None:
    schema = DistDataset.from_pyg(shop()).schema
    assert create_sampling_config([2], schema).with_edge
    assert not create_sampling_config([2], schema, with_edge=False).with_edge


def test_other_loaders_have_them_too() -> None:
    graph, dataset = shop(), DistDataset.from_pyg(shop())
    links = (EDGE, graph[EDGE].edge_index[:, :20])
    how: dict[str, Any] = {"num_workers": 0, "batch_size": 5}
    with DistLinkNeighborLoader(dataset, [2, 2], links, neg_sampling="binary", **how) as loader:
        for batch in loader:
            check_rows(batch, graph)
    labels = {EDGE: (graph[EDGE].edge_index, None)}
    dataset = DistDataset.from_pyg(shop(), supervision=labels)
    with DistABLPLoader(dataset, [2, 2], USERS, supervision_edge_type=EDGE, **how) as loader:
        for batch in loader:
            check_rows(batch, graph)


def test_trees_in_time() -> None:
    graph = shop()
    times = torch.arange(23).flip(0)
    dataset = DistDataset.from_pyg(graph, time_attr="time")
    with _loader(dataset, time_attr="time", input_time=times) as loader:
        for batch in loader:
            check_rows(batch, graph)


# --- where rows go --------------------------------------------------------------------------------


def _write(folder: Path, num_partitions: int, name: str = "mapped", **how: Any) -> Path:
    graph = shop()
    root = folder / name
    how["format"] = name.split("-")[0]
    partition_graph(graph, num_partitions, root, progress=False, **how)
    return root


@pytest.mark.multiprocess
def test_two_partitions_in_all_ways(tmp_path: Path) -> None:
    for name in ("mapped", "glt"):
        _write(tmp_path, 2, name, method="random")
    (tmp_path / "ranks").mkdir()
    run_ranks(frame_jobs.two_ranks, tmp_path, world_size=2, tmp_path=tmp_path / "ranks")


@pytest.mark.multiprocess
def test_a_graph_store(tmp_path: Path) -> None:
    run_cluster(frame_jobs.client, dataset=frame_jobs.partition, tmp_path=tmp_path, clients=1)


@pytest.mark.parametrize("name", ["mapped", "mapped-by-degree", "glt"])
def test_files_give_the_bits_of_memory(tmp_path: Path, name: str) -> None:
    how: dict[str, Any] = {"order": "degree"} if "degree" in name else {}
    root = _write(tmp_path, 1, name, **how)
    wanted = frame_jobs.digests(DistDataset.from_pyg(shop()), USERS, num_workers=0)
    loaded = DistDataset.load(root, 0, mmap=name != "glt")
    assert loaded.schema.frames == DistDataset.from_pyg(shop()).schema.frames
    assert frame_jobs.digests(loaded, USERS, num_workers=0) == wanted


@pytest.mark.parametrize("kernels", ["torch", "warp"])
def test_the_sampler_of_a_device(kernels: Any) -> None:
    wanted = frame_jobs.digests(DistDataset.from_pyg(shop()), USERS, num_workers=0)
    dataset = DistDataset.from_pyg(shop()).to("cpu", kernels=kernels)
    assert frame_jobs.digests(dataset, USERS, num_workers=0) == wanted


def test_padded_and_split_batches_have_the_real_rows() -> None:
    graph, dataset = shop(), DistDataset.from_pyg(shop())
    with _loader(dataset) as loader:
        sizes = padding_sizes(list(loader), share=0.5)  # half of the batches are split
    with _loader(dataset, pad=sizes) as loader:
        shapes = set()
        for batch in loader:
            check_rows(batch, graph)
            dead = batch["user"].tf[~batch["user"].pad_node_mask]
            assert not dead.feat_dict[stype.numerical].any()
            shapes.add(len(batch["user"].tf))
        assert len(shapes) == 1


def test_quantised_embeddings(tmp_path: Path) -> None:
    graph = shop()
    partition_graph(graph, 1, tmp_path / "p", feature_dtype={"user": "int8"}, progress=False)
    stored = DistDataset.load(tmp_path / "p", 0)
    assert stored.view().node_attributes["user", "tf-embedding"].values.dtype == torch.int8
    loaded: list[tuple[DistDataset, dict[str, Any]]] = [
        (stored, {}),
        (stored, {"num_workers": 1}),
        (DistDataset.load(tmp_path / "p", 0).to("cpu", kernels="torch"), {}),
    ]
    for dataset, how in loaded:
        with _loader(dataset, **how) as loader:
            for batch in loader:
                ids, found = batch["user"].n_id, batch["user"].tf.feat_dict[stype.embedding]
                whole = graph["user"].tf.feat_dict[stype.embedding].values
                half = (whole.amax(0) - whole.amin(0)) / 510
                assert ((found.values - whole[ids]).abs() <= half * 1.01).all()
                assert not torch.equal(found.values, whole[ids])
                assert same(batch["item"].tf, graph["item"].tf[batch["item"].n_id])
    with full_graph(torch.nn.Identity(), stored, device="cpu") as data:
        assert data["user"].tf.feat_dict[stype.embedding].values.dtype == torch.float32
    graph["user"].tf.feat_dict[stype.embedding].values[0, 0] = torch.nan
    with pytest.raises(ConfigError, match="embeddings of node type 'user' are not finite"):
        partition_graph(graph, 1, tmp_path / "q", feature_dtype="int8", progress=False)


def test_a_transform_that_changes_nodes_and_edges() -> None:
    graph = shop()

    def without_the_last_user(output: Any) -> Any:
        ids = output.node["user"]
        keep = len(ids) - 1
        for name, (src, _, dst) in ((e, e) for e in list(output.row)):
            kept = torch.ones_like(output.row[name], dtype=torch.bool)
            for end, of in ((output.row, src), (output.col, dst)):
                if of == "user":
                    kept &= end[name] < keep
            for of_edges in (output.row, output.col, output.edge):
                of_edges[name] = of_edges[name][kept]
        output.node["user"] = ids[:keep]
        return output

    dataset = DistDataset.from_pyg(graph)
    with _loader(dataset, transform_sampler_output=without_the_last_user) as loader:
        for batch in loader:
            check_rows(batch, graph)


# --- models ---------------------------------------------------------------------------------------


def test_the_form_of_relgt_takes_the_rows_of_the_batch() -> None:
    graph = shop()
    for name in COUNTS:
        graph[name].time = torch.zeros(COUNTS[name], dtype=torch.int64)
    options = TokenOptions(4, fill="repeat", pairs=True)
    how: dict[str, Any] = {"time_attr": "time", "input_time": torch.full((23,), 9)}
    with _loader(DistDataset.from_pyg(graph), tokens=options, **how) as loader:
        batch = next(iter(loader))
    found = batch.tokens.as_relgt()
    number = batch.tokens.node_types.index("user")
    ids = found["neighbor_indices"].view(-1)[found["grouped_indices"][number]]
    assert same(found["grouped_tfs"][number], graph["user"].tf[ids])
    given_ = batch.tokens.as_relgt(
        {name: batch[name].get("tf", batch[name].n_id) for name in COUNTS}
    )
    assert same(given_["grouped_tfs"][number], found["grouped_tfs"][number])
    moved = batch.tokens.cpu()
    assert same(moved.as_relgt()["grouped_tfs"][number], found["grouped_tfs"][number])


def test_the_whole_graph_has_them_and_layers_say_that_they_need_x() -> None:
    graph, dataset = shop(), DistDataset.from_pyg(shop())
    with full_graph(torch.nn.Identity(), dataset, device="cpu") as data:
        for name in ("user", "item"):
            assert same(data[name].tf, graph[name].tf)
        assert "tf-rows" not in data["user"]
    with pytest.raises(ConfigError, match=r"nodes of \['item', 'user'\] have rows of mixed types"):
        full_graph_inference([lambda x, edge_index, num_dst: x], dataset)


def test_the_digest_of_a_batch_covers_every_cell_and_name() -> None:
    def batch_of(frame: TensorFrame) -> HeteroData:
        batch = HeteroData()
        batch["a"].tf = frame
        return batch

    first = batch_of(random_frame(5, 0))
    check_same_batches([first], [batch_of(random_frame(5, 0))])  # missing equals missing
    assert batch_digest(first) == batch_digest(batch_of(random_frame(5, 0)))
    seen = {batch_digest(first)}
    for kind in first["a"].tf.feat_dict:
        changed = random_frame(5, 0)
        values = changed.feat_dict[kind]
        (values.values if hasattr(values, "offset") else values).view(-1)[-1] = 99
        seen.add(batch_digest(batch_of(changed)))
        with pytest.raises(AssertionError):
            check_same_batches([first], [batch_of(changed)])
    renamed = random_frame(5, 0)
    renamed.col_names_dict[stype.numerical] = ["a", "b"]
    seen.add(batch_digest(batch_of(renamed)))
    assert len(seen) == 2 + len(KINDS)


# --- errors ---------------------------------------------------------------------------------------


def test_counts_that_do_not_fit() -> None:
    graph = shop()
    graph["user"].num_nodes = 24
    with pytest.raises(ConfigError, match=r"data\['user'\].tf has 23 rows, for 24 nodes"):
        DistDataset.from_pyg(graph)
    graph = shop()
    graph[EDGE].tf = random_frame(89, 0)
    with pytest.raises(ConfigError, match=r"buys.*tf has 89 rows, for 90 edges"):
        DistDataset.from_pyg(graph)
    data = Data(x=torch.zeros(3, 1), edge_index=torch.zeros(2, 5).long(), tf=random_frame(4, 0))
    with pytest.raises(ConfigError, match=r"data.tf has 4 rows, for 3 nodes and 5 edges"):
        DistDataset.from_pyg(data)


def test_a_target_and_other_names_are_not_taken_silently() -> None:
    graph = shop()
    graph["user"].tf.y = torch.arange(23)
    graph["item"].rows = random_frame(31, 0)
    with pytest.warns(UserWarning, match=r"data\['user'\].tf.y \(labels.*set data\['user'\].y to"):
        dataset = DistDataset.from_pyg(graph)
    assert not dataset.view().node_labels
    with pytest.warns(UserWarning, match=r"data\['item'\].rows \(a TensorFrame .*not called tf"):
        DistDataset.from_pyg(graph)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DistDataset.from_pyg(shop())


def test_a_tensor_of_that_name_is_an_attribute_as_others() -> None:
    ends = torch.zeros(2, 2).long()
    dataset = DistDataset.from_pyg(Data(x=torch.zeros(3, 1), edge_index=ends, tf=torch.arange(3)))
    with DistNeighborLoader(dataset, [1], num_workers=0, batch_size=3) as loader:
        assert next(iter(loader)).tf.tolist() == [0, 1, 2]


def test_without_pytorch_frame_the_loader_says_so_when_it_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset = DistDataset.from_pyg(shop())
    plain = DistDataset.from_pyg(Data(edge_index=torch.zeros(2, 2).long(), num_nodes=2))
    monkeypatch.setitem(sys.modules, "torch_frame", None)
    match = r"tf of \['item', 'user', 'user__buys__item'\].*gigl_loader\[relational\]"
    with pytest.raises(ConfigError, match=match):
        _loader(dataset)
    with pytest.raises(ConfigError, match=match), full_graph(torch.nn.Identity(), dataset):
        pass
    with DistNeighborLoader(plain, [1], num_workers=0) as loader:
        assert len(list(loader)) == 2
