"""`build_storage_dataset`, GiGL's name for reading the partition that a storage server serves."""

from pathlib import Path

import torch.distributed as dist

from gigl_loader.dataset.dist_dataset import DistDataset
from gigl_loader.dataset.schema import EdgeDir, FilePath
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.object_storage.object_folder import is_url

_INSTEAD = "write partitions with partition_tables(...) or partition_graph(data, n, root) once"


def build_storage_dataset(
    task_config_uri: FilePath,
    sample_edge_direction: EdgeDir | None = None,
    tf_record_uri_pattern: str | None = None,
    splitter: object = None,
    should_load_tensors_in_parallel: bool = True,
    ssl_positive_label_percentage: float | None = None,
    max_labels_per_anchor_node: int | None = None,
) -> DistDataset:
    """Return the partition of this storage server, from a directory of partitions.

    ::

        dataset = build_storage_dataset("partitions", "in")
        run_storage_server(cluster_info.storage_node_rank, cluster_info, dataset)

    The partition is that of this rank in the process group, which is the storage servers', as in
    GiGL; without a group it is partition 0. `DistDataset.load` says which.

    Args:
        task_config_uri: The directory, or its URL. In GiGL, a task configuration, which does not
            exist here.
        sample_edge_direction: ``edge_dir`` of the dataset; None: the directory's.
        tf_record_uri_pattern: Of task configurations: None.
        splitter: The same: splits are stored with the partitions.
        should_load_tensors_in_parallel: Not looked at.
        ssl_positive_label_percentage: As ``splitter``.
        max_labels_per_anchor_node: See the attribute of the dataset.

    Raises:
        ConfigError: An argument is about task configurations, or the directory cannot be read as
            `DistDataset.load` says.
    """
    given = {
        "tf_record_uri_pattern": tf_record_uri_pattern,
        "splitter": splitter,
        "ssl_positive_label_percentage": ssl_positive_label_percentage,
    }
    if named := [name for name, value in given.items() if value is not None]:
        raise ConfigError(
            f"build_storage_dataset has no use for {named}: there are no task configurations here; "
            f"{_INSTEAD}, with splits and labels, and leave these out"
        )
    # Configurations may lie in object storage, too: files, while a URL of partitions is a folder.
    is_file = str(task_config_uri).endswith((".yaml", ".yml"))
    if is_file or not (is_url(task_config_uri) or Path(task_config_uri).is_dir()):
        raise ConfigError(
            f"task_config_uri={str(task_config_uri)!r} is no directory of partitions, which stands "
            f"here in place of a task configuration: {_INSTEAD}, and give their directory"
        )
    rank = dist.get_rank() if dist.is_initialized() else 0
    dataset = DistDataset.load(task_config_uri, rank, edge_dir=sample_edge_direction)
    dataset.max_labels_per_anchor_node = max_labels_per_anchor_node
    return dataset
