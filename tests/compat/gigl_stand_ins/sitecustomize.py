"""What GiGL's example scripts need and a machine of tests lacks; put on ``PYTHONPATH``.

Python imports this module in each process that a script starts. ``gigl.distributed`` means
`gigl_loader` there. The cloud is a directory, ``GIGL_CLOUD``: a blob is a file, BigQuery keeps
what it was told to load. TensorFlow, Beam and torchrec have any name and do nothing.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from gigl_loader.compat import install

CLOUD = Path(os.environ["GIGL_CLOUD"])
LACKING = [
    "absl",
    "apache_beam",
    "fastavro",
    "google.api_core",
    "gigl.src.mocking",
    "google.cloud",
    "jaxtyping",
    "omegaconf",
    "tensorflow",
    "tensorflow_data_validation",
    "tensorflow_metadata",
    "tensorflow_transform",
    "torch_sparse",
    "torchrec",
]


class _Class:
    """A class of a library that is lacking."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take anything."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock(name=name)

    def __class_getitem__(cls, item: Any) -> Any:
        return item[0] if isinstance(item, tuple) else item


class _Blob:
    def __init__(self, path: Path) -> None:
        self._path, self.name = path, path.name

    def upload_from_file(self, content: Any, content_type: str) -> None:
        del content_type
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_bytes(content.read())


class _Bucket:
    def __init__(self, name: str) -> None:
        self._root = CLOUD / name

    def blob(self, name: str) -> _Blob:
        return _Blob(self._root / name)

    def list_blobs(self, prefix: str) -> list[_Blob]:
        return [_Blob(path) for path in self._root.glob(f"{prefix}/**/*") if path.is_file()]


class _Storage:
    """``google.cloud.storage.Client``."""

    def __init__(self, project: str | None = None) -> None:
        self.project = project

    bucket = staticmethod(_Bucket)


class _BigQuery(mock.MagicMock):
    """``google.cloud.bigquery.Client``."""

    def load_table_from_uri(self, source_uris: Any, destination: Any, **_: Any) -> Any:
        with (CLOUD / "bigquery.jsonl").open("a") as file:
            file.write(json.dumps([str(source_uris), str(destination)]) + "\n")
        return mock.MagicMock(output_rows=1, errors=None)


def _write_rows(file: Any, schema: Any, rows: Any) -> None:
    del schema
    for row in rows:
        file.write(json.dumps(row).encode() + b"\n")


_NAMES: dict[str, dict[str, Any]] = {
    "fastavro": {"writer": _write_rows, "reader": lambda file: map(json.loads, file)},
    "google.cloud.bigquery": {"Client": _BigQuery},
    "google.cloud.exceptions": {"GoogleCloudError": OSError},
    "google.cloud.storage": {"Client": _Storage},
    "omegaconf": {
        "OmegaConf": mock.MagicMock(create=lambda values: values, to_object=lambda values: values)
    },
}


class _Anything(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _NAMES.get(self.__name__, {}):
            return _NAMES[self.__name__][name]
        return type(name, (_Class,), {}) if name[0].isupper() else mock.MagicMock(name=name)


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        del path, target
        if f"{name}.".startswith(tuple(f"{lacking}." for lacking in LACKING)):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        module = _Anything(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: any name is there."""


class _OfGiGL(importlib.abc.MetaPathFinder):
    """Finds modules of ``gigl.distributed`` that were left in GiGL's tree: `gigl_tree.OWN`."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        del path, target
        own = name.removeprefix("gigl.distributed.")
        if own == name:
            return None
        (root,) = sys.modules["gigl"].__path__
        file = Path(root, "distributed", *own.split(".")).with_suffix(".py")
        return importlib.util.spec_from_file_location(name, file) if file.exists() else None


sys.meta_path.append(_StandIns())  # after all others: for what is not installed
if "GIGL_SUITE" in os.environ:
    sys.meta_path.insert(0, _OfGiGL())
install("gigl.distributed")
if "GIGL_SUITE" in os.environ:  # in processes that a suite starts, too
    import_module("gigl_servers")
