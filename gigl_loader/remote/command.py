"""A storage server from the command line.

::

    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-endpoint HOST:29500 --rdzv-backend c10d \
        -m gigl_loader.graph_store.serve --root /data/graph --port 29600
    python -m gigl_loader.graph_store.serve --status HOST:29600
"""

import argparse
import json
import logging
import os
import re
import time

from gigl_loader.dataset.local import DistDataset
from gigl_loader.errors import GiglLoaderError
from gigl_loader.remote import wire
from gigl_loader.remote.dataset import GraphStoreInfo
from gigl_loader.remote.rpc import OBSERVER, Hello, ServerLink, result_of
from gigl_loader.remote.server import JOIN_TIMEOUT_S, init_storage_process
from gigl_loader.remote.service import DistServer

_log = logging.getLogger(__name__)
_STATUS_TIMEOUT_S = 20.0


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the options; figures of the cluster come from torchrun's environment by default."""
    environ = os.environ
    parser = argparse.ArgumentParser(
        prog="python -m gigl_loader.graph_store.serve",
        description="Serve one partition of a graph to compute processes.",
    )
    parser.add_argument("--root", help="directory that partition_graph wrote")
    parser.add_argument("--rank", type=int, default=int(environ.get("RANK", "0")))
    parser.add_argument("--num-servers", type=int, default=int(environ.get("WORLD_SIZE", "1")))
    parser.add_argument(
        "--master-addr", default=environ.get("MASTER_ADDR", "127.0.0.1"), help="of server 0"
    )
    parser.add_argument("--port", type=int, default=29600, help="where server 0 listens")
    parser.add_argument("--own-addr", help="address of this machine to listen on")
    parser.add_argument(
        "--own-port", type=int, default=0, help="of the other servers; 0: any that is free"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="compute jobs to serve; 0: until told to stop"
    )
    parser.add_argument("--timeout", type=float, default=JOIN_TIMEOUT_S, help="to meet server 0, s")
    parser.add_argument("--status", metavar="HOST:PORT", help="ask a running server, and end")
    args = parser.parse_args(argv)
    if args.root is None and args.status is None:
        parser.error("--root is required (or --status, to ask a running server)")
    if args.status is not None and not re.fullmatch(r".+:\d+", args.status):
        parser.error(f"--status takes HOST:PORT, got {args.status!r}")
    return args


def serve(args: argparse.Namespace) -> int:
    """Load, serve, end; return how many jobs were served."""
    started = time.monotonic()
    dataset = DistDataset.load(args.root, args.rank)
    _log.info("loaded %r in %.1f s", dataset, time.monotonic() - started)
    info = GraphStoreInfo(
        num_storage_nodes=args.num_servers, num_compute_nodes=1, num_processes_per_compute=1,
        cluster_master_ip=args.master_addr, storage_cluster_master_ip=args.master_addr,
        compute_cluster_master_ip=args.master_addr, cluster_master_port=0,
        storage_cluster_master_port=0, compute_cluster_master_port=0,
        rpc_master_port=args.port, rpc_wait_port=0,
    )  # fmt: skip
    with init_storage_process(
        args.rank, info, dataset, num_jobs=args.jobs or None, host=args.own_addr,
        port=args.own_port, timeout_s=args.timeout,
    ) as server:  # fmt: skip
        return server.wait()


def ask_status(where: str) -> dict[str, object]:
    """Return the status of the server at ``HOST:PORT``.

    Raises:
        PeerError: It does not answer, or the cluster token is wrong.
    """
    host, _, port = where.rpartition(":")
    deadline = time.monotonic() + _STATUS_TIMEOUT_S
    connection = wire.connect_patiently(
        host, int(port), wire.cluster_token(None), "status", deadline=deadline, what="the server"
    )
    link = ServerLink(0, connection)
    try:
        hello = link.hello(Hello(role=OBSERVER, rank=0, num_servers=0))
        result_of(hello, _STATUS_TIMEOUT_S, "hello")
        return result_of(link.call(DistServer.status), _STATUS_TIMEOUT_S, "status")
    finally:
        link.close()


def main(argv: list[str] | None = None) -> int:
    """Run; return the exit code."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    args = parse_args(argv)
    try:
        if args.status is not None:
            print(json.dumps(ask_status(args.status), indent=2, default=str))
        else:
            _log.info("served %d jobs", serve(args))
    except GiglLoaderError as error:
        _log.error("%s: %s", type(error).__name__, error)
        return 1
    return 0
