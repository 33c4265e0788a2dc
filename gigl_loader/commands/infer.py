"""``gigl-loader infer``: embeddings of all nodes by a trained model, from the command line.

::

    gigl-loader infer --root GRAPH --model torch_geometric.nn:GraphSAGE \
        --model-options '{"in_channels": 100, "hidden_channels": 128, "num_layers": 2}' \
        --checkpoint model.pt --out EMBEDDINGS
    gigl-loader infer --server STORAGE0:29600 --model ... --checkpoint model.pt --out EMBEDDINGS
    torchrun --nnodes 4 ... -m gigl_loader infer ...

Without torchrun it starts a rank for each partition on this machine; on a graph store it is one
compute process. Arguments, and all else that can be checked without it, are checked before torch
is imported, which takes seconds.
"""

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gigl_loader.dataset.format.directory import check_root
from gigl_loader.errors import ConfigError, GiglLoaderError, exit_code
from gigl_loader.graph_store.status import add_security, ask, host_and_port, security_of
from gigl_loader.graph_store.wire.membership import check_job_name
from gigl_loader.runtime.command_line import verb_parser
from gigl_loader.runtime.object_storage.command_options import add_cache
from gigl_loader.runtime.object_storage.object_folder import is_url
from gigl_loader.runtime.transport import SILENCE_S, Security

_EXAMPLES = """
gigl-loader infer --root /data/graph --out /data/embeddings \\
    --model torch_geometric.nn:GraphSAGE --checkpoint model.pt
gigl-loader infer --server STORAGE0:29600 --tls /etc/gigl --out /data/embeddings \\
    --model torch_geometric.nn:GraphSAGE --checkpoint model.pt
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = verb_parser(
        "infer", "Compute the embedding of every node of a partitioned graph.", _EXAMPLES
    )
    graph = parser.add_argument_group("the graph")
    where = graph.add_mutually_exclusive_group(required=True)
    where.add_argument("--root", help="directory that partition_graph wrote, or its s3:// URL")
    where.add_argument(
        "--server",
        metavar="HOST:PORT",
        type=host_and_port,
        help="storage server 0 of a graph store, instead of --root",
    )
    graph.add_argument(
        "--job",
        metavar="NAME",
        help="with --server: the job's name, as of init_compute_process (default: of its own)",
    )
    add_cache(graph)
    model = parser.add_argument_group("the model")
    model.add_argument(
        "--model",
        required=True,
        metavar="MODULE:NAME",
        help="a class or function that returns the model: a BasicGNN, or a list of layers",
    )
    model.add_argument(
        "--model-options", type=_keywords, default={}, metavar="JSON", help="keywords of --model"
    )
    model.add_argument(
        "--checkpoint",
        help="file with its state_dict, of torch.save or save_checkpoint, or its URL",
    )
    model.add_argument(
        "--edge-weight",
        action=argparse.BooleanOptionalAction,
        help="give the layers the edges' weights",
    )
    model.add_argument(
        "--edge-attr", action="store_true", help="give the layers the edges' features"
    )
    model.add_argument("--device", default="cpu", help='"cuda": the GPU of the local rank')
    output = parser.add_argument_group("the output")
    output.add_argument(
        "--out", required=True, help="folder for ids and embeddings, by rank, or its s3:// URL"
    )
    output.add_argument(
        "--format", choices=("npy", "parquet"), default="npy", help="format of the files"
    )
    output.add_argument(
        "--batch-size",
        type=int,
        help="nodes that are computed at a time (default: as memory allows)",
    )
    output.add_argument("--quiet", action="store_true", help="show no progress")
    add_security(parser)
    return parser


def _keywords(text: str) -> dict[str, Any]:
    try:
        keywords = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be JSON, got {text!r}: {error}") from None
    if not isinstance(keywords, dict):
        raise argparse.ArgumentTypeError(
            f"must be a JSON object of keywords, such as '{{\"in_channels\": 100}}', got {text!r}"
        )
    return keywords


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    args = parser().parse_args(argv)
    try:
        # On the CPU and in this process: a mistake in the arguments then gives one line here,
        # instead of a traceback from each rank.
        num_servers = _check(args)
        from gigl_loader.commands.infer_run import run

        return run(args, num_servers)
    except GiglLoaderError as error:
        print(f"gigl-loader infer: {error}", file=sys.stderr)
        return exit_code(error)


def _check(args: argparse.Namespace) -> int:
    """Refuse what can be refused before the model is made; return the number of storage servers.

    Raises:
        ConfigError: An option belongs to the other kind of graph, or what it names is missing.
        PeerError: ``--server`` does not respond.
        ObjectStorageError: Object storage failed.
    """
    if args.server is None:
        wrong = {"--job": args.job, "--tls": args.tls, "--insecure": args.insecure}
        why = "for a graph store: give --server in place of --root"
    else:
        wrong = {"--cache-dir": args.cache_dir, "--cache-size": args.cache_size}
        why = "for a --root in object storage: storage servers have caches of their own"
    given = [name for name, value in wrong.items() if value is not None]
    if given:
        raise ConfigError(f"{' and '.join(given)}: {why}")
    if args.job is not None:
        check_job_name(args.job)
    _check_model(args.model, args.checkpoint)
    if args.server is not None:
        return _count_servers(args.server, security_of(args))
    check_root(args.root)
    return 0


def _check_model(model: str, checkpoint: str | None) -> None:
    module, _, name = model.partition(":")
    if not module or not name:
        raise ConfigError(f"--model must be MODULE:NAME, got {model!r}")
    package = module.partition(".")[0]
    if package not in sys.modules and find_spec(package) is None:  # imports nothing
        raise ConfigError(f"--model {model} cannot be made: No module named {package!r}")
    if checkpoint is not None and not is_url(checkpoint) and not Path(checkpoint).is_file():
        raise ConfigError(f"--checkpoint {checkpoint} cannot be loaded: it does not exist")


def _count_servers(where: tuple[str, int], security: Security) -> int:
    """Return how many storage servers the graph store has whose server 0 listens at ``where``.

    Raises:
        ConfigError: That is another server.
        PeerError: Nothing listens there, or it does not respond in time.
        JoinRefusedError: It does not let this process in, or is another service.
    """
    status = ask(where, security, patience_s=SILENCE_S)
    if status["server_rank"] != 0:
        raise ConfigError(
            f"--server {where[0]}:{where[1]} is storage server {status['server_rank']}: give the "
            "address of server 0"
        )
    return int(status["num_servers"])


if __name__ == "__main__":
    sys.exit(main())
