"""Kill workers and storage servers at random under a training loop; at the end compare all bits.

Starts a storage cluster on this machine, takes epochs undisturbed, then the same ones again while a
process is killed every few seconds: a sampling worker, or a server, which is started again with the
same arguments. The sha256 of each epoch has to be the same.

    python examples/benchmarks/faults/soak.py --minutes 10 --every 5
"""

import argparse
import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch
from torch_geometric.data import Data

from gigl_loader import DistNeighborLoader, GraphStoreInfo, RemoteDistDataset, partition_graph
from gigl_loader.graph_store import (
    DistServer,
    init_compute_process,
    request_server,
    shutdown_compute_process,
)
from gigl_loader.testing import batch_tensors
from gigl_loader.transport import free_port

HOST = "127.0.0.1"
AWAY_S = 120.0
"""How long a server may be away: its start on a machine whose cores are all busy."""


class Store:
    """Storage servers as processes of their own; any may be killed, and is started again."""

    def __init__(self, root: Path, num_servers: int) -> None:
        self.port = free_port()
        self._command = [
            sys.executable, "-m", "gigl_loader", "serve", "--root", str(root), "--num-servers",
            str(num_servers), "--master-addr", HOST, "--port", str(self.port), "--rejoin-timeout",
            str(AWAY_S),
        ]  # fmt: skip
        self._log = (root.parent / "servers.log").open("w")
        self.processes = [self._start(rank) for rank in range(num_servers)]

    def _start(self, rank: int) -> "subprocess.Popen[bytes]":
        command = [*self._command, "--rank", str(rank)]
        return subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def restart(self, rank: int, how: signal.Signals) -> None:
        """End a server, and start it again at once."""
        self.processes[rank].send_signal(how)
        self.processes[rank].wait(60)
        self.processes[rank] = self._start(rank)

    def close(self) -> None:
        """End all."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self._log.close()


class Killer(threading.Thread):
    """Kills something every few seconds."""

    def __init__(self, store: Store, every_s: float, seed: int) -> None:
        super().__init__(daemon=True)
        self._store, self._every_s, self._lot = store, every_s, random.Random(seed)
        self.over = threading.Event()
        self.killed: dict[str, int] = {}

    def run(self) -> None:
        """Kill, until `over` is set; one server at a time is away."""
        while not self.over.wait(self._every_s * self._lot.uniform(0.5, 1.5)):
            try:
                what = self._lot.choice([self._kill_worker, self._kill_server])()
            except Exception as error:  # that server is away already
                what = f"nothing ({type(error).__name__})"
            self.killed[what] = self.killed.get(what, 0) + 1
            print(f"{time.strftime('%X')} killed: {what}", flush=True)

    def _kill_worker(self) -> str:
        rank = self._lot.randrange(len(self._store.processes))
        producers = request_server(rank, DistServer.status)["producers"].values()
        pids = [pid for producer in producers for pid in producer["worker_pids"]]
        os.kill(self._lot.choice(pids), signal.SIGKILL)
        return f"a worker of server {rank}"

    def _kill_server(self) -> str:
        rank = self._lot.randrange(len(self._store.processes))
        for one in range(len(self._store.processes)):
            request_server(one, DistServer.ping)  # raises where one is away
        how = self._lot.choice([signal.SIGKILL, signal.SIGTERM])
        self._store.restart(rank, how)
        return f"server {rank} by {how.name}"


def make_graph(num_nodes: int) -> Data:
    """Return a random graph."""
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(num_nodes, (2, 10 * num_nodes), generator=generator)
    return Data(x=torch.rand(num_nodes, 16, generator=generator), edge_index=edges)


def digest_of_epoch(loader: DistNeighborLoader, epoch: int) -> str:
    """Return the sha256 of all tensors of an epoch."""
    digest = hashlib.sha256()
    loader.set_epoch(epoch)
    for batch in loader:
        for name, value in sorted(batch_tensors(batch).items()):
            digest.update(name.encode())
            if isinstance(value, torch.Tensor):
                digest.update(value.contiguous().numpy().tobytes())
    return digest.hexdigest()


def soak(store: Store, info: GraphStoreInfo, args: argparse.Namespace) -> bool:
    """Return whether all epochs had the same bits."""
    dataset = RemoteDistDataset(info, 0)
    nodes = dataset.fetch_node_ids()
    how = {"batch_size": 32, "shuffle": True, "seed": 5, "reconnect_timeout": AWAY_S}
    with DistNeighborLoader(dataset, [5, 5], nodes, max_restarts=1000, **how) as loader:
        expected = [digest_of_epoch(loader, epoch) for epoch in range(3)]
        killer, until, epochs, same = Killer(store, args.every, args.seed), time.monotonic(), 0, 0
        until += 60.0 * args.minutes
        killer.start()
        while time.monotonic() < until:
            same += digest_of_epoch(loader, epochs % 3) == expected[epochs % 3]
            epochs += 1
        killer.over.set()
        killer.join(90)
        restarts = loader.stats()["restarts"]
    kills = ", ".join(f"{count} x {what}" for what, count in sorted(killer.killed.items()))
    print(f"{kills}; {restarts} restarts of workers; {same} of {epochs} epochs have the same bits")
    return same == epochs > 0


def main() -> int:
    """Run; return 0 if all bits were the same."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two kills")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="of what is killed when")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "graph"
        partition_graph(make_graph(args.nodes), args.servers, root)
        store = Store(root, args.servers)
        info = GraphStoreInfo(
            args.servers, 1, 1, HOST, HOST, HOST, 0, 0, free_port(), store.port, 0
        )
        os.environ["RANK"] = "0"
        try:
            init_compute_process(0, info, "gloo")
            return 0 if soak(store, info, args) else 1
        finally:
            shutdown_compute_process()
            store.close()


if __name__ == "__main__":
    sys.exit(main())
