"""File systems of `fsspec`, for files that are read where they are, such as tables.

Those of object storage are by ``obstore``, with the options and credentials of `ObjectFolder`.
"""

import importlib
from typing import Any

from gigl_loader.errors import ConfigError, needed
from gigl_loader.runtime.object_storage.object_folder import checked_url, store_options

_OF_STORES = ("s3", "gs", "az")


def file_system_of(url: str) -> tuple[Any, str]:
    """Return a file system of ``fsspec``, and the path of a URL in it.

    Methods of one of object storage raise ``FileNotFoundError`` if an object is missing, and
    `ObjectStorageError` if requests were refused, or failed repeatedly.

    Args:
        url: The URL of a file, a folder or a pattern; or a path of this machine.

    Raises:
        ConfigError: The URL has credentials in it; or a package is missing.
    """
    scheme = url.partition("://")[0]
    if scheme in _OF_STORES:
        checked = checked_url(url)
        with needed(f'{checked} needs obstore: run pip install "gigl_loader[objects]"'):
            module = importlib.import_module("gigl_loader.runtime.object_storage.stored_files")
        # new each time: one that is kept would have the credentials of its first use
        files = module.StoredFiles(scheme, skip_instance_cache=True, **store_options(checked))
        return files, checked.partition("://")[2]
    try:
        return importlib.import_module("fsspec.core").url_to_fs(url)  # type: ignore[no-any-return]  # has no types
    except (ImportError, ValueError) as error:
        raise ConfigError(
            f"{url} needs a file system that is not installed ({error}): install fsspec and its "
            "requirements, or copy the files to a disk"
        ) from error
