"""Requests that a storage server refuses before it starts a producer."""

from collections.abc import Sequence
from typing import Any

from gigl_loader._glt import SamplingConfig
from gigl_loader.dataset.schema import is_label_edge_type
from gigl_loader.dataset.view import PartitionView
from gigl_loader.errors import ConfigError
from gigl_loader.options import CustomSamplerOptions, FeatureStoreOptions


def check_leave(options: Any, allowed: Sequence[str], server: int) -> None:
    """Refuse to import a class that the server was not started with leave for.

    Args:
        options: Of a sampler or a feature store; others name no class.
        allowed: Packages, modules or classes that clients may name.
        server: Its rank, for the error.

    Raises:
        ConfigError: It has no leave.
    """
    if not isinstance(options, CustomSamplerOptions | FeatureStoreOptions):
        return
    path = options.class_path
    what = "sampler" if isinstance(options, CustomSamplerOptions) else "feature store"
    # with the dot: leave for `mine.samplers` is none for `mine.samplers_of_others`
    if not any(path == one or path.startswith(f"{one}.") for one in allowed):
        raise ConfigError(
            f"storage server {server} has no leave to import the {what} {path!r}: start it with "
            f"--allow-samplers {path.rpartition('.')[0]}, or "
            "init_storage_process(allow_samplers=[...]); nothing was started"
        )


def check_columns(config: SamplingConfig, view: PartitionView) -> None:
    """Refuse to sample by weights, or with edge ids, that the graph does not have.

    Raises:
        ConfigError: Says what it lacks.
    """
    # label edges are looked up for the anchors and never drawn, so they need neither
    walked = {
        name: adjacency
        for name, adjacency in view.adjacency.items()
        if not is_label_edge_type(name)
    }
    # one type with weights suffices, others are drawn uniformly; edge ids are a column of the batch
    # for each type
    if config.with_weight and all(one.weights is None for one in walked.values()):
        raise ConfigError(f"edge types {list(walked)} have no weights, which were asked for")
    missing = [name for name, one in walked.items() if not one.has_edge_ids]
    if config.with_edge and missing:
        raise ConfigError(f"edge types {missing} have no edge_ids, which were asked for")
