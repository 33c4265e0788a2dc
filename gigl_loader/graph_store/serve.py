"""`gigl-loader serve`: a storage server from the command line.

Arguments, and all else that can be checked without it, are checked before torch is imported, which
takes seconds.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence

from gigl_loader.dataset.format.directory import check_root
from gigl_loader.errors import ConfigError, GiglLoaderError, exit_code
from gigl_loader.graph_store import status
from gigl_loader.graph_store.server.settings import (
    JOIN_TIMEOUT_S,
    check_settings,
    listening_address,
)
from gigl_loader.graph_store.status import add_security, security_of
from gigl_loader.graph_store.wire.membership import MAX_JOBS, PATIENCE_S
from gigl_loader.runtime.command_line import verb_parser
from gigl_loader.runtime.logs import showing_where
from gigl_loader.runtime.object_storage.command_options import add_cache
from gigl_loader.runtime.system import use_one_heap
from gigl_loader.runtime.transport import sockets
from gigl_loader.sampler.options import DEFAULT_RECONNECT_S

_log = logging.getLogger(__name__)

_EXAMPLES = """
gigl-loader serve --root /data/graph --master-port 29600 --num-jobs 1
torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint STORAGE0:29500 \\
    -m gigl_loader serve --root /data/graph --master-addr STORAGE0 --master-port 29600 \\
    --tls /etc/gigl
"""
_MORE = "The first is one machine, the second two.\n"


def parser() -> argparse.ArgumentParser:
    """Return the parser; figures of the cluster come from torchrun's environment by default."""
    environ = os.environ
    parser = verb_parser(
        "serve", "Serve one partition of a graph to compute processes.", _EXAMPLES, _MORE
    )
    graph = parser.add_argument_group("the graph")
    graph.add_argument(
        "--root", required=True, help="directory that partition_graph wrote, or its s3:// URL"
    )
    add_cache(graph)
    graph.add_argument(
        "--edges",
        choices=("own", "all"),
        default="own",
        help="all: have the edges of all partitions here, "
        "so that servers ask each other for no neighbours",
    )
    # Defaults are torchrun's variables, so that one command line works on all machines; without
    # torchrun they give one server, for trials.
    servers = parser.add_argument_group("the servers", "without these, as torchrun says")
    servers.add_argument(
        "--rank",
        type=int,
        default=environ.get("RANK", "0"),
        help="this server; server i serves partition i modulo the number of partitions",
    )
    servers.add_argument(
        "--num-servers",
        type=int,
        default=environ.get("WORLD_SIZE", "1"),
        help="storage servers in all: at least one for each partition; further ones are replicas",
    )
    servers.add_argument(
        "--master-addr", default=environ.get("MASTER_ADDR", "127.0.0.1"), help="address of server 0"
    )
    # not 29500, which is torchrun's own default on the same machine
    servers.add_argument("--master-port", type=int, default=29600, help="port of server 0")
    servers.add_argument("--host", help="address of this machine to listen on")
    servers.add_argument(
        "--port",
        type=int,
        default=0,
        help="where this server listens, if it is not server 0; 0: any that is free",
    )
    jobs = parser.add_argument_group("the jobs")
    jobs.add_argument(
        "--num-jobs",
        "--num_server_sessions",
        type=int,
        default=0,
        metavar="N",
        help="end after so many compute jobs (GiGL's name is taken, too); 0: serve until SIGTERM "
        "or SIGINT",
    )
    jobs.add_argument(
        "--max-jobs",
        type=int,
        default=MAX_JOBS,
        metavar="N",
        help="compute jobs to serve at a time; further ones wait in the order of their arrival",
    )
    jobs.add_argument(
        "--channel-memory",
        metavar="SIZE",
        help='most memory for batches of all jobs, such as "8GB"; a loader beyond it is refused '
        "(default: no limit)",
    )
    jobs.add_argument(
        "--allow-samplers",
        metavar="PREFIX",
        action="append",
        default=[],
        help="package, module or class that clients may name as a sampler; may be repeated",
    )
    jobs.add_argument(
        "--allow-functions",
        metavar="PREFIX",
        action="append",
        default=[],
        help="package, module or function that clients may run on this server; may be repeated",
    )
    waits = parser.add_argument_group("waits")
    waits.add_argument(
        "--timeout", type=float, default=JOIN_TIMEOUT_S, metavar="SECONDS", help="wait for server 0"
    )
    waits.add_argument(
        "--network-timeout",
        type=float,
        default=PATIENCE_S,
        metavar="SECONDS",
        help="how long an outage of the network may last; the same on all processes",
    )
    waits.add_argument(
        "--reconnect-timeout",
        type=float,
        default=DEFAULT_RECONNECT_S,
        metavar="SECONDS",
        help="how long another server may be away, to be started again with the same arguments, "
        "if no other one has its partition; 0: this one ends at once",
    )
    metrics = parser.add_argument_group("metrics")
    metrics.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="where Prometheus may read this server's figures, at /metrics; 0: any that is free "
        "(default: nowhere)",
    )
    metrics.add_argument(
        "--metrics-host",
        default="127.0.0.1",
        metavar="HOST",
        help="address of this machine for that; beyond loopback it needs --tls or --insecure",
    )
    add_security(parser)
    return parser


def parse_serve(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    return parser().parse_args(argv)


def check(args: argparse.Namespace) -> None:
    """Refuse what can be refused before the graph is loaded.

    Raises:
        ConfigError: A figure is out of range, there is no graph at ``--root``, no authentication is
            set, or the address cannot be listened on.
        ObjectStorageError: Object storage failed.
    """
    # With several servers all have one command line, and all but server 0 ignore --port.
    if args.num_servers == 1 and args.port not in (0, args.master_port):
        raise ConfigError(
            f"the only server listens on --master-port, which is {args.master_port}: give "
            f"--master-port {args.port} in place of --port"
        )
    check_settings(
        args.rank,
        args.num_servers,
        num_jobs=args.num_jobs or None,
        max_jobs=args.max_jobs,
        channel_memory=args.channel_memory,
        network_timeout=args.network_timeout,
        reconnect_timeout=args.reconnect_timeout,
    )
    security = security_of(args)
    check_root(args.root)
    # else it depends on the address of server 0, which may be known later only
    if args.rank == 0 or args.host:
        address = listening_address(args.rank, args.master_addr, args.host)
        security.check_listener(address)
        # A moment only: the graph is loaded before this server listens, as clients wait for a
        # server that does not respond yet, and say so.
        port = args.port if args.rank else args.master_port
        sockets.listen(address, port, sockets.PROBED_S).close()
    if args.metrics_port is not None:
        sockets.listen(args.metrics_host, args.metrics_port).close()


def serve(args: argparse.Namespace) -> int:
    """Load, serve, end; return how many jobs were served."""
    from gigl_loader.dataset.dist_dataset import DistDataset
    from gigl_loader.dataset.format.glt_files import count_partitions
    from gigl_loader.graph_store.server.storage_process import init_storage_process
    from gigl_loader.graph_store.wire.graph_store_info import info_of_servers

    use_one_heap()  # before the first thread of a connection
    started = time.monotonic()
    # loaded before anything listens: clients wait for a server that does not respond yet, and say
    # so
    dataset = DistDataset.load(
        args.root,
        args.rank % count_partitions(args.root, args.cache_dir),
        edges=args.edges,
        cache_dir=args.cache_dir,
        cache_size=args.cache_size,
    )
    _log.info("loaded %r in %.1f s", dataset, time.monotonic() - started)
    info = info_of_servers(args.num_servers, args.master_addr, args.master_port)
    with init_storage_process(
        args.rank,
        info,
        dataset,
        num_jobs=args.num_jobs or None,
        max_jobs=args.max_jobs,
        channel_memory=args.channel_memory,
        tls_dir=args.tls,
        insecure=args.insecure,
        allow_samplers=args.allow_samplers,
        allow_functions=args.allow_functions,
        host=args.host,
        port=args.port,
        timeout=args.timeout,
        network_timeout=args.network_timeout,
        metrics_port=args.metrics_port,
        metrics_host=args.metrics_host,
        reconnect_timeout=args.reconnect_timeout,
    ) as server:
        return server.wait()


def serve_main(argv: Sequence[str] | None = None) -> int:
    """Run ``gigl-loader serve``; return the exit code."""
    args = parse_serve(argv)
    # errors of this library name a remedy; for others the traceback is needed
    with showing_where():
        try:
            check(args)
            _log.info("served %d jobs", serve(args))
        except GiglLoaderError as error:
            _log.error("%s: %s", type(error).__name__, error)
            return exit_code(error)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``python -m gigl_loader.graph_store.serve``, which also asks with ``--status``."""
    given = list(sys.argv[1:] if argv is None else argv)
    # not an option of the parser of `serve`, which would require --root
    if "--status" in given:
        given.remove("--status")
        return status.main(given)
    return serve_main(given)


# scripts and manifests start servers by ``python -m gigl_loader.graph_store.serve``
if __name__ == "__main__":
    sys.exit(main())
