"""A PyG graph that ``torch.save`` wrote, for ``gigl-loader partition --pyg``."""

import argparse
import pickle
import time
from pathlib import Path
from typing import Any

import torch
import torch_geometric.data.storage as storages
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr

from gigl_loader.errors import ConfigError, first_line
from gigl_loader.partitioning.partition_graph import partition_graph
from gigl_loader.runtime.files_of_others import load_torch_file

# PyG allows its own classes from 2.6 on, and later versions more of them.
_ALLOWED = [
    Data,
    HeteroData,
    DataEdgeAttr,
    DataTensorAttr,
    storages.BaseStorage,
    storages.GlobalStorage,
    storages.NodeStorage,
    storages.EdgeStorage,
]


def partition_saved_graph(args: argparse.Namespace) -> str:
    """Partition the graph of ``--pyg`` by the options of the command; return what was written."""
    started = time.monotonic()
    partition_graph(
        read_saved_graph(Path(args.pyg)),
        args.num_partitions,
        args.root,
        method=args.method or "contiguous",
        edge_dir=args.edge_dir,
        seed=args.seed,
        progress=not args.quiet,
        format=args.format,
        overwrite=args.overwrite,
        time_attr=args.time_attr,
        feature_dtype=args.feature_dtype,
        order=args.order or "ids",
        communities=args.communities,
    )
    return f"{args.root}: {args.num_partitions} partitions, {time.monotonic() - started:.1f} s"


def read_saved_graph(path: Path) -> Data | HeteroData:
    """Return the `Data` or `HeteroData` of a file.

    Besides these, ``to_dict()`` of them is read, and the one graph of a PyG ``InMemoryDataset``
    (its ``processed/data.pt``). Nothing in the file is run.

    Raises:
        ConfigError: The file cannot be read, or is something else.
    """
    try:
        # A pickle may run its author's code. So only tensors and PyG's own classes are created.
        torch.serialization.add_safe_globals(_ALLOWED)  # only for this process, the command's
        content = load_torch_file(path, "cpu")
    except OSError as error:
        raise ConfigError(f"--pyg {path} cannot be read: {error.strerror or error}") from error
    except pickle.UnpicklingError as error:
        raise ConfigError(
            f"--pyg {path} holds more than tensors and PyG's Data or HeteroData, and other classes "
            "could run code when they are loaded: save data.to_dict() instead; or, if you trust "
            "the file, call partition_graph(torch.load(path, weights_only=False), ...) in Python "
            f"({first_line(error)})"
        ) from error
    except (RuntimeError, EOFError, ValueError) as error:
        raise ConfigError(f"--pyg {path} is not a file of torch.save: {error}") from error
    return _graph_of(content, path)


def _graph_of(content: Any, path: Path) -> Data | HeteroData:
    # The contents of a saved InMemoryDataset: (data or its to_dict(), slices, class); slices
    # separate the graphs, and are None if there is one.
    if isinstance(content, tuple) and len(content) in (2, 3):
        if content[1] is not None:
            raise ConfigError(f"--pyg {path} holds a dataset of several graphs: save one of them")
        content = content[0]
    if isinstance(content, dict):
        kind = HeteroData if "_global_store" in content else Data
        content = kind.from_dict(content)
    if not isinstance(content, Data | HeteroData):
        raise ConfigError(
            f"--pyg {path} must hold a Data or HeteroData, got {type(content).__name__}"
        )
    return content
