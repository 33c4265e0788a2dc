"""graphlearn-torch's server-client mode: two servers, two clients, each a process."""

import os
from typing import Any

import gigl_loader.glt as glt
import pytest
import torch
import torch.distributed as dist
from gigl_loader.glt.sampler import RemoteNodePathSamplerInput, RemoteNodeSplitSamplerInput
from gigl_loader.glt.typing import Split

from gigl_loader import DistNeighborLoader
from gigl_loader.compat.glt.loaders import by_server
from gigl_loader.errors import ConfigError, UsageError
from gigl_loader.runtime.ranks.collectives import end_group
from gigl_loader.testing import TinyGraph, batch_tensors, check_same_batches
from tests.graph_store.store_cluster import HOST, free_port, processes
from tests.graph_store.test_functions import doubled, nothing

pytestmark = pytest.mark.multiprocess

gltd = glt.distributed
GRAPHS = {
    "plain": TinyGraph.random(60, 400, seed=5),
    "typed": TinyGraph.random(60, 400, seed=5, heterogeneous=True),
}
HOW: dict[str, Any] = {"batch_size": 4, "random_seed": 7}
LEFT_OPEN: list[Any] = []
BUYS = ("user", "buys", "item")


def _partitions(kind):
    return GRAPHS[kind].partitions(2, edge_dir="out")


def _remote(servers, key, **how):
    return gltd.RemoteDistSamplingWorkerOptions(
        server_rank=servers,
        num_workers=1,
        worker_devices=[torch.device("cpu")],
        worker_concurrency=4,
        master_addr=HOST,
        master_port=1,
        buffer_size="64MB",
        prefetch_size=2,
        worker_key=key,
        **how,
    )


def _serve(port, rank, kind):
    assert gltd.get_server() is None
    with pytest.raises(UsageError, match="init_server"):
        gltd.wait_and_shutdown_server()
    with pytest.raises(ConfigError, match="num_servers must be an integer > 0"):
        gltd.init_server(0, rank, None, HOST, port)
    dataset = _partitions(kind)[rank]
    allowed = [f"{doubled.__module__}.doubled"]
    how: dict[str, Any] = {"server_group_name": "my-servers", "allow_functions": allowed}
    gltd.init_server(2, rank, dataset, HOST, port, num_clients=2, **how)
    server = gltd.get_server()
    assert server is not None
    assert server.dataset.partition_idx == rank
    with pytest.raises(UsageError, match="is a server"):
        gltd.init_server(2, rank, dataset, HOST, port)
    context = gltd.get_context()
    assert context.role is gltd.DistRole.SERVER
    assert (context.rank, context.num_servers(), context.num_clients()) == (rank, 2, 2)
    assert context.worker_name == f"my_servers_{rank}"
    gltd.wait_and_shutdown_server()
    assert gltd.get_server() is None


def _client(port, rank, folder, kind, check):
    with pytest.raises(ConfigError, match=r"client_rank must be in \[0, 2\)"):
        gltd.init_client(2, 2, 2, HOST, port)
    gltd.init_client(2, 2, rank, HOST, port, client_group_name="my-clients")
    context = gltd.get_context()
    assert (context.rank, context.world_size, context.num_servers()) == (rank, 2, 2)
    assert context.is_client()
    assert context.worker_name == f"my_clients_{rank}"
    assert not dist.is_initialized(), "a script starts its own"
    if kind == "plain":
        with pytest.raises(UsageError, match=f"as {rank} of 2, and is 0 of 1 .*init_process_group"):
            gltd.DistNeighborLoader(None, [3], Split.train, worker_options=_remote([0, 1], "early"))
    dist.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=2)
    with pytest.raises(UsageError, match="has joined"):
        gltd.init_client(2, 2, rank, HOST, port)
    check(rank, folder)
    gltd.shutdown_client()
    gltd.shutdown_client()
    assert all(loader._shutdowned for loader in LEFT_OPEN)
    with pytest.raises(UsageError, match="not part of a graph store"):
        gltd.request_server(0, gltd.DistServer.ping)
    end_group()


def _run(tmp_path, kind, check):
    port = free_port()
    with processes(tmp_path) as started:
        roles = [started.start(_serve, port, rank, kind) for rank in range(2)]
        roles += [started.start(_client, port, r, str(tmp_path), kind, check) for r in range(2)]
        started.join(roles)


# --- what a client asks a server ------------------------------------------------------------------


def _asks_plain(rank, folder):
    server: Any = gltd.DistServer
    ask: Any = gltd.request_server
    graph = GRAPHS["plain"].to_pyg()
    ids = torch.arange(60)
    owners = ask(0, server.get_node_partition_id, None, ids)
    assert torch.equal(ask(1, server.get_node_partition_id, None, ids), owners)
    edges: list[Any] = []
    for part in range(2):
        assert ask(part, server.get_dataset_meta) == (2, part, None, None)
        own = ids[owners == part].flip(0)  # in the order of the ids, which do not ascend here
        assert torch.equal(_partitions("plain")[part].node_ids, own.flip(0))
        assert torch.equal(ask(part, server.get_node_feature, None, own), graph.x[own])
        labels = ask(part, func=server.get_node_label, node_type=None, index=own)
        assert torch.equal(labels, graph.y[own])
        assert ask(part, server.get_tensor_size, None) == (own.numel(), 2)
        row, col = ask(part, server.get_edge_index, None, "coo")
        assert (owners[row] == part).all()
        edges += zip(row.tolist(), col.tolist(), strict=True)
        assert ask(part, server.get_edge_size, None, "coo") == (60, col.unique().numel())
        with pytest.raises(ConfigError, match="not of partition"):
            ask(part, server.get_node_feature, None, ids)
    assert sorted(edges) == sorted(map(tuple, graph.edge_index.t().tolist()))
    later = gltd.async_request_server(1, server.get_tensor_size, None)
    assert later.wait()[1] == 2
    assert ask(server_rank=0, func=torch.cuda.device_count) == torch.cuda.device_count()
    assert torch.equal(ask(1, doubled, ids, times=3), 3 * ids)
    wrongs: list[tuple[Any, str]] = [
        ((1, nothing), "no permission to run"),
        ((0, server.get_edge_index, None, "csr"), "layout must be 'coo', got 'csr'"),
        ((0, server.get_edge_index, BUYS), "edge_type must be one of"),
        ((0, server.get_node_feature, "user", ids), "no node features of 'user'"),
        ((0, server.get_node_label, None, torch.tensor([60])), r"must be in \[0, 60\)"),
        ((0, server.get_node_partition_id, "user", ids), "node_type must be one of"),
        ((0, server.get_node_partition_id, None, torch.tensor([-1])), r"must be in \[0, 60\)"),
        ((0, os.getpid), "a client may ask for these methods of DistServer"),
        ((0, [].append), "a client may ask for these methods of DistServer"),
        ((2, server.get_dataset_meta), "server rank"),
    ]
    for wrong, text in wrongs:
        with pytest.raises(ConfigError, match=text):
            ask(*wrong)


def _asks_typed(rank, folder):
    server: Any = gltd.DistServer
    ask: Any = gltd.request_server
    graph, ids = GRAPHS["typed"].to_pyg(), torch.arange(60)
    edges: list[Any] = []
    for part in range(2):
        count, index, node_types, edge_types = ask(part, server.get_dataset_meta)
        assert (count, index, sorted(node_types)) == (2, part, ["item", "user"])
        assert sorted(edge_types) == sorted(GRAPHS["typed"].edges)
        owners = ask(part, server.get_node_partition_id, "item", ids)
        own = ids[owners == part]
        assert torch.equal(ask(part, server.get_node_feature, "item", own), graph["item"].x[own])
        assert torch.equal(ask(part, server.get_node_label, "item", own), graph["item"].y[own])
        assert ask(part, server.get_tensor_size, "item") == (own.numel(), 2)
        row, col = ask(part, server.get_edge_index, BUYS, "coo")
        edges += zip(row.tolist(), col.tolist(), strict=True)
        assert ask(part, server.get_edge_size, BUYS, "coo") == (60, col.unique().numel())
    assert sorted(edges) == sorted(GRAPHS["typed"].edges[BUYS])


@pytest.mark.parametrize(("kind", "check"), [("plain", _asks_plain), ("typed", _asks_typed)])
def test_what_servers_answer(tmp_path, kind, check):
    _run(tmp_path, kind, check)


# --- loaders --------------------------------------------------------------------------------------


def _save(loader, folder, name, rank):
    torch.save([batch_tensors(batch) for batch in loader], f"{folder}/{name}.{rank}.batches")


def _loads(rank, folder):
    parts = _partitions("plain")
    paths = [f"{folder}/seeds{part}.pt" for part in range(2)]
    if rank == 0:
        for part, path in enumerate(paths):
            torch.save(parts[part].node_ids.flip(0), path)
    dist.barrier()
    inputs = {"paths": paths, "split": Split.train}
    for name, seeds in inputs.items():
        with gltd.DistNeighborLoader(
            None,
            [3, 2],
            seeds,
            shuffle=True,
            collect_features=True,
            with_edge=True,
            worker_options=_remote([0, 1], name),
            **HOW,
        ) as loader:
            assert loader.input_data[0].node.numel() == 0, "no id came here"
            for epoch in range(2):
                _save(loader, folder, f"{name}.{epoch}", rank)
    # each its own server, without a worker key
    with gltd.DistNeighborLoader(
        None,
        [3, 2],
        RemoteNodePathSamplerInput(paths[rank]),
        worker_options=_remote(rank, None),
        **HOW,
    ) as loader:
        _save(loader, folder, "own", rank)
    with gltd.DistSubGraphLoader(
        None, Split.train, [3], worker_options=_remote([0, 1], "sub"), **HOW
    ) as loader:
        assert sum(batch.batch_size for batch in loader) > 0
    links = GRAPHS["plain"].to_pyg().edge_index[:, :8]
    with gltd.DistLinkNeighborLoader(
        None, [3], 4, links, torch.arange(8), worker_options=_remote(1, "links"), random_seed=7
    ) as loader:
        _save(loader, folder, "links", rank)
    _refused(rank, folder, paths)
    LEFT_OPEN.append(  # `shutdown_client` shuts it down
        gltd.DistNeighborLoader(
            None, [3], Split.train, worker_options=_remote([0, 1], "left open"), **HOW
        )
    )
    dist.barrier()


def _refused(rank, folder, paths):
    torch.save(torch.tensor([60]), f"{folder}/strange{rank}.pt")
    for how, text in [
        ({"input_nodes": paths[:1]}, r"1 inputs were given for servers \[0, 1\]"),
        ({"input_nodes": [f"{folder}/nothing.pt"] * 2}, r"server 0 has no file .*nothing.pt"),
        ({"input_nodes": [f"{folder}/strange{rank}.pt"] * 2}, r"must be in \[0, 60\)"),
        ({"input_nodes": Split.test}, "no 'test' split"),
        ({"input_nodes": ("user", Split.train)}, "'user'"),
        ({"edge_dir": "in"}, "edge_dir='in', but this dataset's nodes .* 'out'"),
        ({"data": _partitions("plain")[0]}, "None with RemoteDistSamplingWorkerOptions"),
        ({"worker_options": None}, "None with RemoteDistSamplingWorkerOptions"),
        ({"worker_options": _remote([0, 2], "x")}, r"storage servers \[2\]"),
    ]:
        arguments = {
            "data": None,
            "num_neighbors": [3],
            "input_nodes": Split.train,
            "worker_options": _remote([0, 1], "refused"),
            **HOW,
            **how,
        }
        with pytest.raises(ConfigError, match=text):
            gltd.DistNeighborLoader(**arguments)
    if rank == 0:
        with pytest.raises(ConfigError, match="split must be one of"):
            RemoteNodeSplitSamplerInput("training")


def _saved(folder, name):
    files = [f"{folder}/{name}.{rank}.batches" for rank in range(2)]
    return [torch.load(file, weights_only=False) for file in files]


def _key(batch):
    return batch["input_id"].tolist()


def test_batches_equal_those_of_one_process(tmp_path):
    _run(tmp_path, "plain", _loads)
    whole = GRAPHS["plain"].dataset(edge_dir="out")
    parts = _partitions("plain")
    seeds = {
        "paths": torch.cat([part.node_ids.flip(0) for part in parts]),
        "split": torch.cat([part.train_node_ids for part in parts]),
    }
    for name, ids in seeds.items():
        with DistNeighborLoader(
            whole, [3, 2], ids, shuffle=True, with_edge=True, num_workers=0, batch_size=4, seed=7
        ) as loader:
            for epoch in range(2):
                first, second = _saved(tmp_path, f"{name}.{epoch}")
                assert first, "each client has batches"
                assert second
                expected = [batch_tensors(batch) for batch in loader]
                _equal(sorted(first + second, key=_key), sorted(expected, key=_key))
    for rank, batches in enumerate(_saved(tmp_path, "own")):
        with DistNeighborLoader(
            whole,
            [3, 2],
            parts[rank].node_ids.flip(0),
            with_edge=False,
            num_workers=0,
            batch_size=4,
            seed=7,
        ) as loader:
            _equal(batches, [batch_tensors(batch) for batch in loader])
    labels = [
        label
        for batches in _saved(tmp_path, "links")
        for b in batches
        for label in b["edge_label"].tolist()
    ]
    assert sorted(labels) == list(range(8)), "each link once, over both clients"


def _equal(batches, expected):
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert batch.keys() == other.keys()
        for name, value in batch.items():
            theirs = other[name]
            assert torch.equal(value, theirs) if torch.is_tensor(value) else value == theirs, name


# --- without processes ----------------------------------------------------------------------------


def test_seeds_by_server():
    paths = [RemoteNodePathSamplerInput("a", "user"), RemoteNodePathSamplerInput("b", "user")]
    assert by_server(("user", ["a", "b"]), [3, 5]) == {3: paths[0], 5: paths[1]}
    assert by_server(paths, [3, 5]) == {3: paths[0], 5: paths[1]}
    assert by_server(("user", "a"), [3, 5]) == {3: paths[0]}
    train = RemoteNodeSplitSamplerInput("train", "user")
    assert by_server(("user", Split.train), [3, 5]) == {3: train, 5: train}
    assert RemoteNodeSplitSamplerInput(Split.valid).split == "val"
    ids = torch.arange(3)
    assert by_server(ids, [3, 5])[3] is ids
    assert by_server(("user", ids), [3, 5]) == ("user", {3: ids})
    assert by_server({3: ids}, [3])[3] is ids


def test_colocated_loaders_take_the_same_order_of_arguments():
    whole = GRAPHS["plain"].dataset(edge_dir="out")
    gltd.init_worker_group(1, 0, "trainers")
    options = gltd.MpDistSamplingWorkerOptions(
        num_workers=1, master_addr=HOST, master_port=1, channel_size="64MB"
    )
    batches = []
    for worker_options in (None, options):
        with gltd.DistNeighborLoader(
            whole, [3, 2], torch.arange(8), 4, True, random_seed=7, worker_options=worker_options
        ) as loader:
            batches.append(list(loader))
    check_same_batches(*batches)
    assert [batch.batch_size for batch in batches[0]] == [4, 4]


def test_who_is_no_client_is_told():
    options = _remote([0], None)
    with pytest.raises(UsageError, match="init_client"):
        gltd.DistNeighborLoader(None, [3], Split.train, worker_options=options)
    with pytest.raises(UsageError, match="init_client"):
        gltd.shutdown_client()
    with pytest.raises(ConfigError, match="num_clients must be an integer > 0"):
        gltd.init_client(1, 0, 0, HOST, 1)
