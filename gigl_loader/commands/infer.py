"""``gigl-loader infer``: embeddings of all nodes by a trained model, from the command line.

::

    gigl-loader infer --root GRAPH --model torch_geometric.nn:GraphSAGE \
        --model-options '{"in_channels": 100, "hidden_channels": 128, "num_layers": 2}' \
        --checkpoint model.pt --out EMBEDDINGS
    gigl-loader infer --server STORAGE0:29600 --model ... --checkpoint model.pt --out EMBEDDINGS
    torchrun --nnodes 4 ... -m gigl_loader infer ...

Without torchrun it starts a rank for each partition on this machine; on a graph store it is one
compute process.
"""

import argparse
import importlib
import json
import os
import platform
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessRaisedException, spawn

from gigl_loader import full_graph_inference, load_checkpoint
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.format import glt_files
from gigl_loader.errors import ConfigError, GiglLoaderError, exit_code
from gigl_loader.graph_store.client.compute_process import (
    JOB_VARIABLE,
    join_cluster,
    shutdown_compute_process,
)
from gigl_loader.graph_store.client.remote_dist_dataset import RemoteDistDataset
from gigl_loader.graph_store.status import add_security, ask, host_and_port, security_of
from gigl_loader.graph_store.wire.graph_store_info import GraphStoreInfo, info_of_servers
from gigl_loader.runtime.object_storage.command_options import add_cache
from gigl_loader.runtime.ranks.collectives import end_group
from gigl_loader.runtime.transport import SILENCE_S, Security


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="gigl-loader infer",
        description="Compute the embedding of every node of a partitioned graph.",
        epilog="examples:\n  gigl-loader infer --root /data/graph --out /data/embeddings "
        "--model torch_geometric.nn:GraphSAGE --checkpoint model.pt\n"
        "  gigl-loader infer --server STORAGE0:29600 --tls /etc/gigl --out /data/embeddings "
        "--model torch_geometric.nn:GraphSAGE --checkpoint model.pt",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    graph = parser.add_mutually_exclusive_group(required=True)
    graph.add_argument("--root", help="directory that partition_graph wrote, or its s3:// URL")
    graph.add_argument(
        "--server",
        metavar="HOST:PORT",
        type=host_and_port,
        help="storage server 0 of a graph store, instead of --root",
    )
    parser.add_argument(
        "--job",
        metavar="NAME",
        help="with --server: the job's name, as of init_compute_process (default: of its own)",
    )
    add_cache(parser)
    parser.add_argument(
        "--out", required=True, help="folder for ids and embeddings, by rank, or its s3:// URL"
    )
    parser.add_argument(
        "--model",
        required=True,
        metavar="MODULE:NAME",
        help="a class or function that returns the model: a BasicGNN, or a list of layers",
    )
    parser.add_argument(
        "--model-options", type=json.loads, default={}, metavar="JSON", help="keywords of --model"
    )
    parser.add_argument(
        "--checkpoint",
        help="file with its state_dict, of torch.save or save_checkpoint, or its URL",
    )
    parser.add_argument("--batch-size", type=int, help="nodes that are computed at a time")
    parser.add_argument("--format", choices=("npy", "parquet"), default="npy", help="default npy")
    parser.add_argument(
        "--edge-weight",
        action=argparse.BooleanOptionalAction,
        help="give the layers the edges' weights",
    )
    parser.add_argument(
        "--edge-attr", action="store_true", help="give the layers the edges' features"
    )
    parser.add_argument(
        "--device", default="cpu", help='default cpu; "cuda": the GPU of the local rank'
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_security(parser)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    args = parse_args(argv)
    try:
        # First on the CPU: a mistake in the arguments then gives one line here, instead of a
        # traceback from each rank.
        _check(args)
        model = load_model(args)  # before anything starts
        if args.server is not None:
            _infer_from_store(args, model)
        elif _has_launcher():
            num_partitions = glt_files.count_partitions(args.root, args.cache_dir)
            dist.init_process_group("gloo")
            _infer_from_partition(args, model, num_partitions)
        else:
            _start_ranks(args, model, glt_files.count_partitions(args.root, args.cache_dir))
    except (GiglLoaderError, ProcessRaisedException) as error:
        print(f"gigl-loader infer: {error}", file=sys.stderr)
        return exit_code(error)
    finally:
        if dist.is_initialized():
            end_group()
    return 0


def load_model(args: argparse.Namespace) -> Any:
    """Return the model of ``--model``, with the values of ``--checkpoint``.

    Raises:
        ConfigError: It cannot be imported, made or filled.
        ObjectStorageError: Object storage failed.
    """
    module, _, name = args.model.partition(":")
    try:
        model = getattr(importlib.import_module(module), name)(**args.model_options)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"--model {args.model} cannot be made: {error}") from error
    if isinstance(model, torch.nn.Module):
        model.eval()
    if args.checkpoint is None:
        return model
    state = load_checkpoint(args.checkpoint, map_location="cpu")
    if state is None:
        raise ConfigError(f"--checkpoint {args.checkpoint} cannot be loaded: it does not exist")
    try:
        # training scripts save more than the model, by convention under "model"
        model.load_state_dict(state.get("model", state))
    except (RuntimeError, AttributeError, TypeError) as error:
        raise ConfigError(f"--checkpoint {args.checkpoint} cannot be loaded: {error}") from error
    return model


def _check(args: argparse.Namespace) -> None:
    """Raise `ConfigError` if an option belongs to the other kind of graph."""
    if args.server is None:
        wrong = {"--job": args.job, "--tls": args.tls, "--insecure": args.insecure}
        why = "for a graph store: give --server in place of --root"
    else:
        wrong = {"--cache-dir": args.cache_dir, "--cache-size": args.cache_size}
        why = "for a --root in object storage: storage servers have caches of their own"
    given = [name for name, value in wrong.items() if value is not None]
    if given:
        raise ConfigError(f"{' and '.join(given)}: {why}")


def _has_launcher() -> bool:
    """Return whether torchrun or the like started this process as one of its ranks."""
    return "RANK" in os.environ


# -- a graph on disk ---------------------------------------------------------------------------


def _start_ranks(args: argparse.Namespace, model: Any, num_partitions: int) -> None:
    if num_partitions == 1:
        _infer_from_partition(args, model, 1)
        return
    # a file connects the ranks of one machine: no port that might be taken
    with tempfile.TemporaryDirectory(prefix="gigl_loader_") as folder:
        spawn(_rank, (args, num_partitions, f"file://{folder}/store"), num_partitions)


def _rank(rank: int, args: argparse.Namespace, num_partitions: int, init_method: str) -> None:
    # torchrun would set it: it picks the GPU
    os.environ["LOCAL_RANK"] = str(rank)
    # gloo with GPUs too: rows are exchanged from the memory of the CPU
    dist.init_process_group("gloo", init_method, rank=rank, world_size=num_partitions)
    _infer_from_partition(args, load_model(args), num_partitions)
    end_group()


def _infer_from_partition(args: argparse.Namespace, model: Any, num_partitions: int) -> None:
    rank = dist.get_rank() if dist.is_initialized() else 0
    # With more ranks than partitions, ranks share them in turn. Files are compared first, as
    # embeddings of changed files would be kept as those of this graph: the computation takes
    # longer.
    dataset = DistDataset.load(
        args.root,
        rank % num_partitions,
        verify="now",
        cache_dir=args.cache_dir,
        cache_size=args.cache_size,
    )
    _infer(args, model, dataset, rank)


# -- a graph store -----------------------------------------------------------------------------


def _infer_from_store(args: argparse.Namespace, model: Any) -> None:
    security = security_of(args)
    info = _storage_cluster(args.server, security)
    if _has_launcher():
        dist.init_process_group("gloo")
    rank, world_size = 0, 1
    if dist.is_initialized():
        rank, world_size = dist.get_rank(), dist.get_world_size()
    try:
        join_cluster(info, rank, world_size, job=_job_name(args.job), security=security)
        dataset = RemoteDistDataset(info, int(os.environ.get("LOCAL_RANK", "0")))
        _infer(args, model, dataset, rank)
    finally:
        shutdown_compute_process()


def _storage_cluster(where: tuple[str, int], security: Security) -> GraphStoreInfo:
    """Return the graph store whose server 0 listens at ``where``.

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
    return info_of_servers(status["num_servers"], *where)


def _job_name(given: str | None) -> str | None:
    """Return the job's name; None: of the environment, as for `init_compute_process`."""
    if given is not None or _has_launcher() or os.environ.get(JOB_VARIABLE):
        return given
    # There is no address of a first machine to be named after: two runs would have one name, and
    # the second would wait for the first.
    return f"infer on {platform.node()}, process {os.getpid()}"


# -- either --------------------------------------------------------------------------------------


def _infer(
    args: argparse.Namespace, model: Any, dataset: DistDataset | RemoteDistDataset, rank: int
) -> None:
    device = args.device
    if device == "cuda":
        device = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    if isinstance(model, torch.nn.Module):
        model = model.to(device)
    embeddings = full_graph_inference(
        model,
        dataset,
        out=args.out,
        batch_size=args.batch_size,
        device=device,
        format=args.format,
        progress=False if args.quiet else None,
        edge_weight=args.edge_weight,
        edge_attr=args.edge_attr,
    )
    for name, result in (embeddings if isinstance(embeddings, dict) else {"": embeddings}).items():
        what = f"embeddings of {name!r}" if name else "embeddings"
        print(f"rank {rank}: {tuple(result.values.shape)} {what} in {result.path}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
