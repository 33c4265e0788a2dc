"""Statistics of the columns of a database, in the form of PyTorch Frame."""

import json
from pathlib import Path
from typing import Any, cast

import torch

from gigl_loader.errors import ConfigError, UsageError

DATABASE_FILE = "database.json"
"""The file beside the manifest of partitions, which describes the database they are made of."""


def read_database_file(root: Path | None) -> dict[str, Any]:
    """Return what is known of the database that the partitions at ``root`` are made of.

    Raises:
        ConfigError: The file is damaged.
        UsageError: They are not made of a database.
    """
    path = Path() if root is None else root / DATABASE_FILE
    if not path.is_file():
        raise UsageError(
            "only a dataset of DistDataset.from_database, or one loaded from its directory, knows "
            "its database and has col_stats"
        )
    try:
        return cast("dict[str, Any]", json.loads(path.read_bytes()))
    except ValueError as error:
        raise ConfigError(f"{path} is damaged: {error}; copy it again") from error


def col_stats_of(content: dict[str, Any]) -> dict[str, dict[str, dict[Any, Any]]]:
    """Return ``{table: {column: {StatType: value}}}``, as RelBench's graph has it."""
    # Not in workers, which never ask: PyTorch Frame takes seconds to import.
    from torch_frame.data.stats import StatType

    def value(name: str, kept: Any) -> Any:
        if name.endswith("TIME"):
            return torch.tensor(kept, device="cpu")
        if name in ("COUNT", "MULTI_COUNT"):
            return tuple(kept)
        several = kept if isinstance(kept, list) else [kept]
        numbers = [float("nan") if v is None else v for v in several]
        return numbers if isinstance(kept, list) else numbers[0]

    return {
        table: {
            column: {StatType(name): value(name, kept) for name, kept in stats.items()}
            for column, stats in columns.items()
        }
        for table, columns in content["col_stats"].items()
    }
