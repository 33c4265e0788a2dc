"""The deployment of a loader's parts, and this process's role in it.

A loader needs a role of its process. When the process ends, it shuts down the open loaders; a
forked child disowns them.
"""

import atexit
import contextlib
import copy
import os
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from gigl_loader.errors import ConfigError, UsageError, WrongTypeError
from gigl_loader.runtime.glt_classes import (
    CollocatedDistSamplingWorkerOptions,
    MpDistSamplingWorkerOptions,
    NodeSamplerInput,
    RemoteDistSamplingWorkerOptions,
)
from gigl_loader.sources.in_process.in_process_source import InProcessSource
from gigl_loader.sources.other_producer import is_producer

if TYPE_CHECKING:
    from gigl_loader.graph_store.client.remote_source import RemoteSource


def check_deployment(dataset: Any, sampler_input: Any, worker_options: Any, producer: Any) -> bool:
    """Return whether the parts are those of a graph store.

    Raises:
        WrongTypeError: They are from both deployments, or from neither.
    """
    # A class is callable, too: one given in place of its object is neither.
    makes = callable(producer) and not isinstance(producer, type) and not is_producer(producer)
    samples = isinstance(producer, InProcessSource) or is_producer(producer)
    own = MpDistSamplingWorkerOptions | CollocatedDistSamplingWorkerOptions
    # Each part, and whether it fits a graph store, or a colocated loader. Datasets by their
    # methods, as GLT's own ones are accepted, too.
    parts = {
        "dataset": (dataset, hasattr(dataset, "fetch_node_ids"), hasattr(dataset, "partition_idx")),
        "sampler_input": (
            sampler_input,
            isinstance(sampler_input, list),
            isinstance(sampler_input, NodeSamplerInput),
        ),
        "worker_options": (
            worker_options,
            isinstance(worker_options, RemoteDistSamplingWorkerOptions),
            isinstance(worker_options, own),
        ),
        "producer": (producer, producer is None or makes, samples),
    }
    for column, is_remote in ((1, True), (2, False)):
        if all(part[column] for part in parts.values()):
            return is_remote
    sides = {
        name: "graph store" if fits_store else "colocated" if fits_here else "neither"
        for name, (_, fits_store, fits_here) in parts.items()
    }
    kinds = {name: type(value).__name__ for name, (value, *_) in parts.items()}
    raise WrongTypeError(
        "the arguments must all be of one deployment: colocated (DistDataset, NodeSamplerInput, "
        "MpDistSamplingWorkerOptions, a producer with init, produce_all, shutdown and "
        "output_channel) or graph store (RemoteDistDataset, "
        "list of NodeSamplerInput, RemoteDistSamplingWorkerOptions, a callable for each server); "
        f"found {sides}, of types {kinds}"
    )


def keyed_options(worker_options: Any, backend_key: str | None, rank: int) -> Any:
    """Return options of workers with GiGL's ``worker_key`` of a ``backend_key``, if they have none.

    Raises:
        ConfigError: There is a ``backend_key`` for workers of this process.
    """
    if backend_key is None:
        return worker_options
    if not isinstance(worker_options, RemoteDistSamplingWorkerOptions):
        raise ConfigError(
            f"backend_key={backend_key!r} is for a graph store, where it names a rank's producers: "
            "leave it out, as the workers of this loader are its own"
        )
    keyed = copy.copy(worker_options)
    keyed.worker_key = worker_options.worker_key or f"{backend_key}_compute_rank_{rank}"
    return keyed


def check_context(is_remote: bool, context: Any) -> None:
    """Check that this process has the role in GLT's context that a loader of it needs.

    Args:
        is_remote: Whether the loader samples on a graph store.
        context: As ``get_context`` of GLT returns it.

    Raises:
        UsageError: It has another role.
    """
    # GLT's own code and its users' read this context, so a loader runs only beside the right one.
    if is_remote and (context is None or not context.is_client()):
        raise UsageError(
            "a graph-store loader needs a client context: call "
            "gigl_loader.graph_store.init_compute_process(...) first"
        )
    if not is_remote and (context is None or not context.is_worker()):
        raise UsageError(
            "a colocated loader needs GLT's worker context: call "
            "BaseDistLoader.initialize_colocated_sampling_worker(...) first"
        )


def remote_source() -> "type[RemoteSource]":
    """Return the class of the sources that a graph store serves."""
    # Here: a colocated loader saves the import of 15 modules of the graph store, which would delay
    # its first batch.
    from gigl_loader.graph_store.client.remote_source import RemoteSource

    return RemoteSource


def the_producer(producer: Any, sampler: Any) -> Any:
    """Return ``producer``, which may be given under its old name, ``sampler``."""
    if sampler is None:
        return producer
    if producer is not None:
        raise ConfigError("both `producer` and its old name `sampler` were given: drop `sampler`")
    # 5: the caller of the loader's constructor, which calls this within two wrappers.
    warnings.warn("`sampler` was renamed to `producer`", DeprecationWarning, stacklevel=5)
    return sampler


# Weak: else no loader would ever be dropped, and its finaliser could not report it.
open_loaders: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those that are not shut down yet: the end of the interpreter does it."""


def _disown() -> None:
    """Count all loaders as shut down: a forked child owns none of its parent's workers."""
    for loader in list(open_loaders):
        # Without a call of `shutdown`: the child has copies of the parent's pipes and sockets, and
        # closing messages there would end the parent's workers.
        loader._shutdowned = loader._is_forked = True
        if loader._is_open:
            loader._epochs.disown()


# At exit and not by finalisers: when these run, modules may be gone already.
@atexit.register
def _shut_all_down() -> None:
    for loader in list(open_loaders):
        with contextlib.suppress(Exception):  # the interpreter is ending: nobody could handle it
            loader.shutdown(idle_timeout=0.0)


# In the child alone; the parent goes on with its loaders.
os.register_at_fork(after_in_child=_disown)
