"""A machine of graphlearn-torch's (GLT's) own loaders, for `bench_machines`; in its environment.

Its server-client mode, or its colocated mode, as its examples use them, over the same partition
files, seeds and fan-outs as ours. What came over the link is all that it is known to have sent.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "colocated"))

import torch
from _machines import LINK, received_bytes
from _watch import all_cpu_s
from bench_machines import FANOUTS, PORT, Case, _some
from run_glt import glt

from gigl_loader import DistDataset


def dataset_of(case: Case, partition: int) -> glt.distributed.DistDataset:
    """Return a partition as GLT's own dataset."""
    view = DistDataset.load(case.folder, partition).view()
    (adjacency,), (features,) = view.adjacency.values(), view.node_features.values()
    (book,) = view.node_books.values()
    owners = book.owner(torch.arange(book.num_ids))
    own = torch.nonzero(owners == partition).flatten()
    rows = adjacency.locate(own)
    has_edges = rows < adjacency.indptr.numel() - 1
    rows = rows[has_edges]
    degrees = torch.zeros(book.num_ids, dtype=torch.int64)
    degrees[own[has_edges]] = adjacency.indptr[rows + 1] - adjacency.indptr[rows]
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)])
    indices = adjacency.indices.long()
    assert int(indptr[-1]) == indices.numel(), "its edges are those of its nodes, in their order"
    position = torch.full((book.num_ids,), -1)
    position[own] = features.locate(own)
    topology = glt.data.Topology((indices, indptr), input_layout="CSC", layout="CSC")
    return glt.distributed.DistDataset(
        num_partitions=case.parts,
        partition_idx=partition,
        graph_partition=glt.data.Graph(topology, "CPU"),
        node_feature_partition=glt.data.Feature(features.values, id2index=position, with_gpu=False),
        node_pb=owners,
        edge_pb=torch.zeros(1, dtype=torch.uint8),
        edge_dir="in",
    )


def seeds_of(case: Case, partition: int) -> torch.Tensor:
    """Return the seeds of an epoch that a partition owns."""
    return _some(DistDataset.load(case.folder, partition).train_node_ids, case, 1)


def _keywords(case: Case, seed: int | None) -> dict[str, Any]:
    return {
        "batch_size": case.batch_size,
        "edge_dir": "in",
        "collect_features": True,
        "to_device": torch.device("cpu"),
        "random_seed": seed,
    }


def _worker_keywords(addresses: list[str], port: int) -> dict[str, Any]:
    return {
        "num_workers": 1,
        "worker_devices": [torch.device("cpu")],
        "worker_concurrency": 4,
        "master_addr": addresses[0],
        "master_port": port,
    }


def colocated(rank: int, case: Case, addresses: list[str], seed: int | None) -> dict[str, Any]:
    """Be a rank with a partition and a sampling process."""
    import torch.distributed as dist

    dist.init_process_group(
        "gloo", init_method=f"tcp://{addresses[0]}:{PORT}", rank=rank, world_size=case.parts
    )
    glt.distributed.init_worker_group(case.parts, rank, "benchmark")
    options = glt.distributed.MpDistSamplingWorkerOptions(
        channel_size="1GB", **_worker_keywords(addresses, PORT + 1)
    )
    loader = glt.distributed.DistNeighborLoader(
        dataset_of(case, rank),
        FANOUTS,
        seeds_of(case, rank),
        worker_options=options,
        **_keywords(case, seed),
    )
    result = measure(loader, case, dist.barrier)
    dist.barrier()  # a rank that leaves early takes away what the others still ask it for
    return result


def serve(server: int, case: Case, addresses: list[str]) -> None:
    """Be a storage server."""
    glt.distributed.init_server(
        num_servers=case.parts,
        server_rank=server,
        dataset=dataset_of(case, server),
        master_addr=addresses[0],
        master_port=PORT,
        num_clients=case.parts,
    )
    glt.distributed.wait_and_shutdown_server()


def client(
    rank: int, case: Case, addresses: list[str], seed: int | None, folder: Path
) -> dict[str, Any]:
    """Be a compute process: as many seeds of each server, each server samples its own."""
    glt.distributed.init_client(
        num_servers=case.parts,
        num_clients=case.parts,
        client_rank=rank,
        master_addr=addresses[0],
        master_port=PORT,
    )
    import torch.distributed as dist

    store = dist.TCPStore(  # type: ignore[attr-defined]  # torch does not declare it
        addresses[case.parts], PORT + 2, case.parts, rank == 0
    )
    paths = []
    for server in range(case.parts):
        paths.append(str(folder / f"{rank}-{server}.pt"))  # GLT reads seeds from files
        own = seeds_of(case, server)[rank :: case.parts]
        torch.save(own[: case.taken * case.batch_size // case.parts].contiguous(), paths[-1])
    options = glt.distributed.RemoteDistSamplingWorkerOptions(
        server_rank=list(range(case.parts)),
        buffer_size="1GB",
        prefetch_size=4,
        worker_key=str(rank),
        **_worker_keywords(addresses, PORT + 3 + rank),
    )
    loader = glt.distributed.DistNeighborLoader(
        None, FANOUTS, paths, worker_options=options, **_keywords(case, seed)
    )

    def meet_others(name: str = "measured") -> None:
        store.set(f"{name}{rank}", "")
        store.wait([f"{name}{one}" for one in range(case.parts)])

    result = measure(loader, case, meet_others)
    meet_others("ended")
    return result


def measure(loader: Any, case: Case, meet: Any) -> dict[str, Any]:
    """Take batches of one epoch; what follows the warm-up counts."""
    batches: Iterator[Any] = iter(loader)
    for _ in range(case.warmup):
        next(batches)
    meet()
    came, cpu, at, begun = received_bytes(), all_cpu_s(), time.time(), time.perf_counter()
    rows = 0
    for _ in range(case.batches):
        rows += next(batches).x.shape[0]
    seconds = time.perf_counter() - begun
    received = received_bytes() - came
    return {
        "seeds": case.batches * case.batch_size,
        "seconds": seconds,
        "rows": rows,
        "received": received,
        "cpu": all_cpu_s() - cpu,
        "began": at,
        "ended": time.time(),
        "network": {"rows": received, "structure": 0},
        "hit_rate": None,
    }


def main() -> None:
    """Be what the argument says, and end at once: GLT may hang where it tears down."""
    role, number, told, addresses, out = json.loads(sys.argv[1])
    case = Case(**told)
    os.environ.update(GLOO_SOCKET_IFNAME=LINK, TP_SOCKET_IFNAME=LINK, GIGL_LOADER_INSECURE="1")
    seed = None if "unseeded" in case.deployment else 1
    result: dict[str, Any] = {}
    if role == "server":
        serve(number, case, addresses)
    elif case.is_store:
        with tempfile.TemporaryDirectory() as folder:
            result = client(number, case, addresses, seed, Path(folder))
    else:
        result = colocated(number, case, addresses, seed)
    Path(out).write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    torch.multiprocessing.set_start_method("spawn")  # GLT's own objects assume it
    main()
