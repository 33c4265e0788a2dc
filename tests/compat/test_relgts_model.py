"""RelGT's own model takes ``tokens.as_relgt()``, and learns from it what is planted at two hops.

Its files are read from the git directory that ``RELGT_REPOSITORY`` names (with commit 280bd9c5),
and run beside pytorch-frame and einops; without these, the tests are left out.
"""

import importlib.util
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import HeteroData

from gigl_loader import (
    DistDataset,
    DistNeighborLoader,
    GraphStoreInfo,
    RemoteDistDataset,
    TokenOptions,
    partition_graph,
    sum_over_ranks,
)
from gigl_loader.testing import run_cluster

COMMIT = "280bd9c5b30c3f689149385b2c0d0d2db01c8e3b"
REPOSITORY = os.environ.get("RELGT_REPOSITORY")
_NEEDED = ("torch_frame", "einops")
_HERE = REPOSITORY and all(importlib.util.find_spec(name) for name in _NEEDED)

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.skipif(not _HERE, reason=f"RELGT_REPOSITORY, or one of {_NEEDED}, is not here"),
]

USERS, PARCELS, WIDTH, DAY = 600, 6, 4, 86_400
TYPES = ("order", "parcel", "user")
TOKENS = TokenOptions(2 * PARCELS + 1, fill="repeat", pairs=True)


def _read_theirs(*names: str) -> list[ModuleType]:
    """Import their files by the bare names that these have for each other."""
    for name in names:
        show = ["git", "-C", str(REPOSITORY), "show", f"{COMMIT}:{name}.py"]
        text = subprocess.run(show, check=True, capture_output=True, text=True).stdout
        sys.modules[name] = ModuleType(name)
        exec(compile(text, f"{name}.py", "exec"), vars(sys.modules[name]))
    return [sys.modules[name] for name in names]


def _graph() -> tuple[HeteroData, Tensor]:
    """Return users, their orders and a parcel for each; and the rows (user, time, answer).

    The answer is the kind of the user's latest parcel, and of all parcels up to the time half are
    of each kind: without times a model can only guess.
    """
    draw = torch.Generator().manual_seed(0)
    first = torch.randint(2, (USERS, PARCELS // 2), generator=draw)
    kind = torch.stack([first, 1 - first], -1).view(USERS, PARCELS)
    time = torch.randint(5, 20, (USERS, PARCELS), generator=draw).cumsum(1) * DAY
    ids = torch.arange(USERS * PARCELS)
    parcel = torch.randperm(USERS * PARCELS, generator=draw)
    graph = HeteroData()
    for name, size in (("user", USERS), ("order", USERS * PARCELS), ("parcel", USERS * PARCELS)):
        graph[name].x = torch.randn(size, WIDTH, generator=draw)
    graph["parcel"].x[parcel, 0] = kind.view(-1) * 2.0 - 1
    graph["parcel"].time = torch.empty_like(ids).index_copy_(0, parcel, time.view(-1))
    graph["parcel", "of", "order"].edge_index = torch.stack([parcel, ids])
    graph["order", "by", "user"].edge_index = torch.stack([ids, ids // PARCELS])
    user = torch.arange(USERS)
    asked = [torch.stack([user, time[:, n], kind[:, n]], 1) for n in (1, 3, 5)]
    return graph, torch.stack(asked, 1).view(-1, 3)


def _frames(rows: Any) -> dict[str, Any]:
    import torch_frame

    columns = {torch_frame.numerical: [f"c{n}" for n in range(WIDTH)]}
    return {
        name: torch_frame.TensorFrame({torch_frame.numerical: rows[name].x}, dict(columns))
        for name in TYPES
    }


def _loader(dataset: Any, users: Any, times: Any, **how: Any) -> DistNeighborLoader:
    return DistNeighborLoader(
        dataset,
        [-1, -1],
        ("user", users),
        input_time=times,
        time_attr="time",
        tokens=TOKENS,
        batch_size=48,
        seed=0,
        **how,
    )


def _their_collate(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return their class of tokens; what it imports and `collate` does not call is stubbed."""
    for name, names in {
        "h5py": ("File",),
        "sentence_transformers": ("SentenceTransformer",),
        "relbench": (),
        "relbench.base": ("Dataset", "EntityTask"),
        "relbench.modeling": (),
        "relbench.modeling.graph": ("get_node_train_table_input",),
    }.items():
        module = ModuleType(name)
        vars(module).update({one: object for one in names}, __path__=[])
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "utils", ModuleType("utils"))
    (utils,) = _read_theirs("utils")
    return utils.RelGTTokens


def test_the_same_as_their_collate(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, asked = _graph()
    graph["user"].y = torch.arange(USERS) % 7
    ordered = HeteroData()  # they number types as the graph has them, and ours are sorted
    for name, frame in _frames(graph).items():
        ordered[name].tf, ordered[name].num_nodes = frame, graph[name].num_nodes
    dataset = DistDataset.from_pyg(graph)
    with _loader(dataset, asked[:, 0].clone(), asked[:, 1].clone(), num_workers=0) as loader:
        batch = next(iter(loader))
    tokens = batch.tokens
    ours = tokens.as_relgt(_frames(batch))
    theirs = object.__new__(_their_collate(monkeypatch))
    theirs.data, theirs.node_types, theirs.target = ordered, list(TYPES), graph["user"].y
    theirs.index_to_node_type = dict(enumerate(TYPES))
    theirs._create_global_mappings()
    ends = tokens.pair[:, [0, 2, 1]].tolist()
    samples = []
    for n in range(tokens.num_sequences):
        kinds = tokens.type[n].tolist()
        ids = [
            int(batch[TYPES[kind]].n_id[row])
            for kind, row in zip(kinds, tokens.row[n].tolist(), strict=True)
        ]
        drawn = {(key, query) for sequence, key, query in ends if sequence == n}
        sample = {
            "types": torch.tensor(kinds),
            "indices": torch.tensor(ids),
            "hops": tokens.hop[n].long(),
            "times": tokens.time[n] / DAY,
            "first_type": kinds[0],
            "first_index": ids[0],
            "global_idx": n,
            "edge_index": torch.tensor(sorted(drawn | {(b, a) for a, b in drawn})).T,
        }
        samples.append((sample, theirs.target[ids[0]].double()))
    expected = theirs.collate(samples)
    assert set(ours) == set(expected)
    frames, expected_frames = ours.pop("grouped_tfs"), expected.pop("grouped_tfs")
    assert frames.keys() == expected_frames.keys()
    assert all(frames[kind] == expected_frames[kind] for kind in frames)
    for name, value in expected.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(ours[name], value, rtol=1e-6, atol=0, msg=name)
        else:
            assert ours[name] == value, name


def _model(graph: HeteroData) -> torch.nn.Module:
    from torch_frame.data.stats import StatType

    *_, model = _read_theirs("codebook", "local_module", "encoders", "model")
    frames = _frames(graph)
    stats = {
        name: {
            column: {StatType.MEAN: 0.0, StatType.STD: 1.0, StatType.QUANTILES: [-3, -1, 0, 1, 3]}
            for columns in frame.col_names_dict.values()
            for column in columns
        }
        for name, frame in frames.items()
    }
    found: torch.nn.Module = model.RelGT(
        num_nodes=graph.num_nodes,
        max_neighbor_hop=3,
        node_type_map={name: number for number, name in enumerate(TYPES)},
        col_names_dict={name: frame.col_names_dict for name, frame in frames.items()},
        col_stats_dict=stats,
        local_num_layers=1,
        channels=32,
        out_channels=1,
        global_dim=16,
        num_centroids=32,
        sample_node_len=TOKENS.max_tokens,
    )
    return found


def _told(model: torch.nn.Module, batch: HeteroData) -> tuple[Tensor, Tensor]:
    """Return their model's answers, and the rows that were asked."""
    taken = batch.tokens.as_relgt(_frames(batch))
    one_by_one = ("neighbor_types", "node_indices", "neighbor_hops", "neighbor_times")
    grouped = ("grouped_tfs", "grouped_indices", "flat_batch_idx", "flat_nbr_idx")
    out = model(
        *(taken[name] for name in one_by_one),
        {name: taken[name] for name in grouped},
        taken["edge_index"],
        taken["batch"],
    )
    return out.view(-1), taken["global_idx"]


def _rule(batch: HeteroData) -> Tensor:
    """Return the answer that the tokens have: the kind of the latest parcel."""
    tokens = batch.tokens
    is_parcel = tokens.type == TYPES.index("parcel")
    latest = tokens.time.masked_fill(~is_parcel, float("inf")).argmin(1)
    kinds = tokens.gather(batch.x_dict)[..., 0]
    return kinds.gather(1, latest[:, None])[:, 0] > 0


def _train(info: GraphStoreInfo, rank: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    graph, asked = _graph()
    is_test = asked[:, 0] >= USERS * 3 // 4
    train, test = (rows[rank::2] for rows in (asked[~is_test], asked[is_test]))
    dataset = RemoteDistDataset(info, rank)
    loaders = [
        _loader(dataset, {rank: rows[:, 0].clone()}, {rank: rows[:, 1].clone()}, **how)
        for rows, how in ((train, {"shuffle": True, "drop_last": True}), (test, {}))
    ]
    own = _model(graph)
    model = DistributedDataParallel(own)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with loaders[0] as training, loaders[1] as testing:
        for _ in range(8):
            for batch in training:
                out, asked_rows = _told(model, batch)
                loss = F.binary_cross_entropy_with_logits(out, train[asked_rows, 2].float())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        own.eval()
        right = [0, 0]
        with torch.no_grad():
            for batch in testing:
                out, asked_rows = _told(own, batch)
                for n, told in enumerate((out > 0, _rule(batch))):
                    right[n] += int((told == (test[asked_rows, 2] > 0)).sum())
    found = [number / int(is_test.sum()) for number in sum_over_ranks(*right)]
    if dist.get_rank() == 0:
        print(f"RelGT {found[0]:.3f}, plan that knows the rule {found[1]:.3f}")
    assert found[1] == 1
    assert found[0] > 0.95


def _load(folder: str, rank: int, _: int) -> DistDataset:
    return DistDataset.load(folder, rank)


def test_their_model_learns_from_a_partitioned_store_on_two_ranks(tmp_path: Path) -> None:
    folder = str(tmp_path / "graph")
    partition_graph(_graph()[0], 2, folder, time_attr="time", progress=False)
    notes = tmp_path / "notes"
    notes.mkdir()
    run_cluster(_train, dataset=partial(_load, folder), tmp_path=notes)
