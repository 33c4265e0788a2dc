"""What `gigl-loader infer` does when its arguments are right: needs torch."""

import argparse
import importlib
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
from gigl_loader.errors import ConfigError, exit_code
from gigl_loader.graph_store.client.compute_process import (
    JOB_VARIABLE,
    join_cluster,
    shutdown_compute_process,
)
from gigl_loader.graph_store.client.remote_dist_dataset import RemoteDistDataset
from gigl_loader.graph_store.status import security_of
from gigl_loader.graph_store.wire.graph_store_info import info_of_servers
from gigl_loader.runtime.ranks.collectives import end_group


def run(args: argparse.Namespace, num_servers: int) -> int:
    """Compute the embeddings; return the exit status.

    Args:
        args: Of `gigl_loader.commands.infer`.
        num_servers: Storage servers, with ``--server``.

    Raises:
        GiglLoaderError: Of many kinds.
    """
    try:
        model = load_model(args)  # before anything starts
        if args.server is not None:
            _infer_from_store(args, model, num_servers)
        elif _has_launcher():
            num_partitions = glt_files.count_partitions(args.root, args.cache_dir)
            dist.init_process_group("gloo")
            _infer_from_partition(args, model, num_partitions)
        else:
            _start_ranks(args, model, glt_files.count_partitions(args.root, args.cache_dir))
    except ProcessRaisedException as error:
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


def _infer_from_store(args: argparse.Namespace, model: Any, num_servers: int) -> None:
    security, info = security_of(args), info_of_servers(num_servers, *args.server)
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
