"""A store on Ray and one client of it; server 0 is killed once. For ``test_store.py``."""

import json
import os
import platform
import secrets
import signal
import sys
import tempfile
from pathlib import Path

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "OMP_NUM_THREADS": "1",
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
}


def main(folder: Path) -> None:
    # of its own, or Ray would find another's cluster; a short one: sockets are in it
    with tempfile.TemporaryDirectory() as of_ray:
        os.environ.update(ENVIRONMENT, RAY_TMPDIR=of_ray)
        import ray

        ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=100_000_000)
        try:
            run(folder)
        finally:
            ray.shutdown()


def run(folder: Path) -> None:
    from gigl_loader import DistNeighborLoader, RemoteDistDataset
    from gigl_loader.graph_store import (
        init_compute_process,
        request_server,
        shutdown_compute_process,
    )
    from gigl_loader.graph_store.ray import start_graph_store
    from gigl_loader.testing import batch_digest, wait_until

    root, functions = folder / "graph", ["platform.node"]
    with start_graph_store(
        root, num_servers=2, cpus_per_server=1, allow_functions=functions
    ) as store:
        servers = store.status()
        os.environ.update(store.environment)
        init_compute_process(0, store.cluster_info)
        assert request_server(1, platform.node) == platform.node()
        dataset, digests = RemoteDistDataset(store.cluster_info, 0), []
        with DistNeighborLoader(
            dataset,
            [3, 2],
            dataset.fetch_node_ids(),
            batch_size=4,
            seed=1,
            shuffle=True,
            shard="world",
            prefetch_size=1,
            reconnect_timeout=300.0,  # a busy machine takes a minute to start a process again
        ) as loader:
            for number, batch in enumerate(loader):
                digests.append(batch_digest(batch))
                if number == 2:
                    os.kill(servers[0]["pid"], signal.SIGKILL)
        shutdown_compute_process()

        def is_back() -> bool:  # its state is asked for every few seconds
            state = store.status()[0]
            return bool(state["state"] == "serving" and state["pid"] != servers[0]["pid"])

        wait_until(is_back, "the store tells that server 0 is back")
        store.check()
        told = {"digests": digests, "before": servers, "after": store.status()}
        (folder / "told").write_text(json.dumps(told, default=str))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
