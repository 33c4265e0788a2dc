"""A loader's first lines in the log: what it samples, and what looks like a slip.

Slips are worth a line and no error: each of them has its use.
"""

import logging
from collections.abc import Sequence

import torch

from gigl_loader.batch.message import SeedColumns, columns_of
from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import DEFAULT_HOMOGENEOUS_NODE_TYPE, SPLITS
from gigl_loader.loader.options.loader_options import LoaderOptions
from gigl_loader.runtime.glt_classes import NodeSamplerInput
from gigl_loader.runtime.system import usable_cpus
from gigl_loader.sources.remote_interface import FETCHED_AS

logger = logging.getLogger(__name__)

GAVE_BATCH_SIZE = "_gave_batch_size"
"""Attribute of a loader: whether its user named ``batch_size``."""
_MANY_SEEDS = 10_000
"""With more seeds, a batch for each of them is hardly meant."""


def log_start(kind: str, words: str, own: int, given: int) -> None:
    """Log what a loader samples.

    Args:
        kind: Its class.
        words: Its seeds, from the functions below.
        own: Seeds of this rank.
        given: Seeds of all ranks that share them.
    """
    share = "" if own == given else f", {own} of them on this rank"
    logger.info("%s starts: %s%s", kind, words, share)


def log_slips(options: LoaderOptions, *, seeds: int, batch_size_left_out: bool) -> None:
    """Log what a user hardly meant.

    Args:
        options: The user's.
        seeds: Seeds of this rank.
        batch_size_left_out: Whether it has its default.
    """
    if batch_size_left_out and options.batch_size == 1 and seeds > _MANY_SEEDS:
        logger.warning(
            "batch_size was left at 1, so these %d seeds are as many batches: give batch_size= "
            "(by position, the fourth argument is num_workers)",
            seeds,
        )
    if options.has_no_hop:
        logger.warning(
            "num_neighbors is empty: batches hold their seeds alone, without neighbours or edges"
        )


def log_workers(num_workers: int, on_this_machine: int) -> None:
    """Log that a machine has fewer CPUs than sampling processes.

    Args:
        num_workers: Of each loader.
        on_this_machine: Ranks that build such a loader.
    """
    wanted, cpus = num_workers * on_this_machine, usable_cpus()
    if wanted > cpus:
        ranks = "" if on_this_machine == 1 else f" on each of {on_this_machine} ranks"
        logger.warning(
            "num_workers=%d%s, and this machine has %d CPUs for them: they take turns, which is "
            "slower than fewer workers",
            num_workers,
            ranks,
            cpus,
        )


def local_seeds(data: DistDataset, given: NodeSamplerInput) -> str:
    """Return the seeds of a colocated loader in words: all, a split, or how many."""
    node_type = given.input_type or DEFAULT_HOMOGENEOUS_NODE_TYPE
    if SeedColumns.of(columns_of(given)).targets is not None:
        return _words("given", len(given.node), "edges", node_type)
    whole = "all" if data.num_partitions == 1 else "all of this partition's"
    known = {
        whole: data.node_ids,
        **{f"the {split} split": data.known_split(split) for split in SPLITS},
    }
    for name, ids in known.items():
        ids = ids.get(node_type) if isinstance(ids, dict) else ids
        if ids is not None and torch.equal(given.node, ids):
            return _words(name, len(ids), "nodes", node_type)
    return _words("given", len(given.node), "nodes", node_type)


def remote_seeds(inputs: Sequence[NodeSamplerInput]) -> str:
    """Return the seeds of a loader on a graph store in words, as they were fetched for it."""
    node_type = inputs[0].input_type or DEFAULT_HOMOGENEOUS_NODE_TYPE
    count = sum(map(len, inputs))
    if SeedColumns.of(columns_of(inputs[0])).targets is not None:
        return _words("given", count, "edges", node_type)
    splits = {getattr(seeds.node, FETCHED_AS, None) for seeds in inputs if len(seeds.node)}
    split = splits.pop() if len(splits) == 1 else None
    return _words(split or "given", count, "nodes", node_type)


def _words(which: str, count: int, what: str, node_type: str) -> str:
    of_type = "" if node_type == DEFAULT_HOMOGENEOUS_NODE_TYPE else f" of type {node_type!r}"
    if which == "given":
        return f"{count} given {what}{of_type}"
    comma = "" if which.startswith("all") else ","
    return f"{which}{comma} {count} {what}{of_type}"
