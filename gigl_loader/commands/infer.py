"""``gigl-loader infer``: embeddings of all nodes by a trained model, from the command line.

::

    gigl-loader infer --root GRAPH --model torch_geometric.nn:GraphSAGE \
        --model-options '{"in_channels": 100, "hidden_channels": 128, "num_layers": 2}' \
        --checkpoint model.pt --out EMBEDDINGS
    torchrun --nnodes 4 ... -m gigl_loader infer ...

Without torchrun it starts a rank for each partition on this machine.
"""

import argparse
import importlib
import json
import os
import sys
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessRaisedException, spawn

from gigl_loader.commands.cache_options import add_cache
from gigl_loader.dataset import disk
from gigl_loader.dataset.local import DistDataset
from gigl_loader.errors import ConfigError, GiglLoaderError, exit_code
from gigl_loader.inference.layerwise import full_graph_inference
from gigl_loader.ranks import end_group


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        prog="gigl-loader infer",
        description="Compute the embedding of every node of a partitioned graph.",
        epilog="example:\n  gigl-loader infer --root /data/graph --out /data/embeddings "
        "--model torch_geometric.nn:GraphSAGE --checkpoint model.pt",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--root", required=True, help="directory that partition_graph wrote, or its s3:// URL"
    )
    add_cache(parser)
    parser.add_argument(
        "--out", required=True, help="folder for ids and embeddings, by rank, or its s3:// URL"
    )
    parser.add_argument(
        "--model", required=True, metavar="MODULE:NAME",
        help="a class or function that returns the model: a BasicGNN, or a list of layers",
    )  # fmt: skip
    parser.add_argument(
        "--model-options", type=json.loads, default={}, metavar="JSON", help="keywords of --model"
    )
    parser.add_argument("--checkpoint", help="state_dict of the model, from torch.save")
    parser.add_argument("--batch-size", type=int, help="nodes that are computed at a time")
    parser.add_argument("--format", choices=("npy", "parquet"), default="npy", help="default npy")
    parser.add_argument(
        "--edge-weight", action=argparse.BooleanOptionalAction,
        help="give the layers the edges' weights",
    )  # fmt: skip
    parser.add_argument(
        "--edge-attr", action="store_true", help="give the layers the edges' features"
    )
    parser.add_argument(
        "--device", default="cpu", help='default cpu; "cuda": the GPU of the local rank'
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    args = parse_args(argv)
    try:
        # First on the CPU: a mistake in the arguments then gives one line here, instead of a
        # traceback from each rank.
        load_model(args)  # before anything starts
        num_partitions = disk.count_partitions(args.root, args.cache_dir)
        # set by torchrun and the like
        if "RANK" in os.environ:
            dist.init_process_group("gloo")
            _infer(args, num_partitions)
        else:
            _start_ranks(args, num_partitions)
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
    try:
        # weights_only: a checkpoint may come from elsewhere, and a pickle runs code
        state = torch.load(args.checkpoint, map_location="cpu", weights_only=True)
        # training scripts save more than the model, by convention under "model"
        model.load_state_dict(state.get("model", state))
    except (OSError, RuntimeError, AttributeError, TypeError) as error:
        raise ConfigError(f"--checkpoint {args.checkpoint} cannot be loaded: {error}") from error
    return model


def _start_ranks(args: argparse.Namespace, num_partitions: int) -> None:
    if num_partitions == 1:
        _infer(args, 1)
        return
    # a file connects the ranks of one machine: no port that might be taken
    with tempfile.TemporaryDirectory(prefix="gigl_loader_") as folder:
        spawn(_rank, (args, num_partitions, f"file://{folder}/store"), num_partitions)


def _rank(rank: int, args: argparse.Namespace, num_partitions: int, init_method: str) -> None:
    # torchrun would set it: it picks the GPU
    os.environ["LOCAL_RANK"] = str(rank)
    # gloo with GPUs too: rows are exchanged from the memory of the CPU
    dist.init_process_group("gloo", init_method, rank=rank, world_size=num_partitions)
    _infer(args, num_partitions)
    end_group()


def _infer(args: argparse.Namespace, num_partitions: int) -> None:
    rank = dist.get_rank() if dist.is_initialized() else 0
    device = args.device
    if device == "cuda":
        device = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
    model: Any = load_model(args)
    if isinstance(model, torch.nn.Module):
        model = model.to(device)
    embeddings = full_graph_inference(
        # with more ranks than partitions, ranks share them in turn
        # Files are compared first, as embeddings of changed files would be kept as those of this
        # graph: the computation takes longer.
        model, DistDataset.load(args.root, rank % num_partitions, verify="now",
                                cache_dir=args.cache_dir, cache_size=args.cache_size),
        out=args.out, batch_size=args.batch_size, device=device, format=args.format,
        progress=False if args.quiet else None, edge_weight=args.edge_weight,
        edge_attr=args.edge_attr,
    )  # fmt: skip
    for name, result in (embeddings if isinstance(embeddings, dict) else {"": embeddings}).items():
        what = f"embeddings of {name!r}" if name else "embeddings"
        print(f"rank {rank}: {tuple(result.values.shape)} {what} in {result.path}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
