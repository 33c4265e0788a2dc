"""A directory of partitions for reading: local, or the copy of one in object storage.

Of the latter, what all partitions share and the requested partitions are copied into the cache of
this machine; the copy is read as any local directory is.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gigl_loader.dataset.format import mapped
from gigl_loader.dataset.format.mapped_reader import Edges
from gigl_loader.dataset.partition.checks import check_partitions
from gigl_loader.dataset.schema import FilePath
from gigl_loader.errors import ConfigError, explained_limits
from gigl_loader.runtime.digests import digest_of
from gigl_loader.runtime.files_of_others import check_bytes
from gigl_loader.runtime.object_storage.fetch import StoredFile
from gigl_loader.runtime.object_storage.folder_cache import Cache, CachedFolder
from gigl_loader.runtime.object_storage.object_folder import ObjectFolder, is_url
from gigl_loader.runtime.progress import note, showing

_log = logging.getLogger(__name__)


@contextmanager
def opened_root(
    root: FilePath,
    partitions: Iterable[int] | None = None,
    edges: Edges = "own",
    *,
    cache_dir: FilePath | None = None,
    cache_size: int | str | None = None,
    progress: bool | None = None,
) -> Iterator[Path]:
    """Yield a local directory with some partitions of ``root``, which is not removed meanwhile.

    Args:
        root: A directory, or the URL of one.
        partitions: Partitions to fetch; none: the manifest alone; None: all.
        edges: See `DistDataset.load`, as for the following arguments.
        cache_dir: See there.
        cache_size: See there.
        progress: See there.

    Raises:
        ConfigError: There are no partitions at the URL, or one is damaged.
        ObjectStorageError: Object storage failed.
        PeerTimeoutError: Another process fetches the same, and is stuck.
        ResourceError: The disk is too small.
    """
    if not is_url(root):
        yield Path(root)
        return
    source = ObjectFolder(str(root))
    with Cache(cache_dir, cache_size).opened(source, mapped.ROOT_FILE) as copy:
        if not mapped.is_mapped_format(copy.path):
            raise ConfigError(
                f"{root} is in GLT's format, which has no checksums: copy it to a local directory, "
                "or partition the graph again"
            )
        try:
            header, shared = mapped.read_header(copy.path)
        except ConfigError as error:
            raise ConfigError(f"the manifest of {root} cannot be used: {error}") from error
        every = range(header.num_partitions)
        chosen = every if partitions is None else list(partitions)
        for k in chosen:
            check_partitions(header.num_partitions, k)
        read = every if edges == "all" else chosen
        with explained_limits(f"fetching {root} into {copy.path}"):
            names = {f"part{k}/{mapped.PART_FILE}": header.parts[k] for k in read}
            sizes = {n: source.size(n) for n, digest in names.items() if not _has(copy, n, digest)}
            for name, size in sizes.items():
                check_bytes(size, f"{root}/{name}")
            copy.fetch([StoredFile(n, size, [names[n]], size) for n, size in sizes.items()], note)
            parts = [
                mapped.read_part_manifest(copy.path, header, k, edges_only=k not in chosen)
                for k in read
            ]
            _fetch(copy, [shared, *parts] if parts else [], progress)
        yield copy.path


def _has(copy: CachedFolder, name: str, digest: str) -> bool:
    """Return whether a manifest is in the copy; one that is damaged is removed."""
    path = copy.path / name
    is_right = path.exists() and digest_of(path.read_bytes()) == digest
    if not is_right:
        path.unlink(missing_ok=True)
    return is_right


def _fetch(copy: CachedFolder, parts: list[mapped.Part], progress: bool | None) -> None:
    files = [
        StoredFile(str(path.relative_to(copy.path)), spec.nbytes, spec.blake2b, mapped.BLOCK_BYTES)
        for part in parts
        for path, spec in part.paths()
    ]
    came, began, total = 0, time.monotonic(), sum(file.nbytes for file in files)

    def count(nbytes: int) -> None:
        nonlocal came
        came += nbytes
        note(nbytes)

    with showing(f"fetch {copy.source.url}", total, shown=progress):
        copy.fetch(files, count)
    if came:
        seconds = time.monotonic() - began
        _log.info(
            "fetched %s: %.3f GB of %.3f in %.1f s (%.2f GB/s), into %s",
            copy.source.url,
            came / 1e9,
            total / 1e9,
            seconds,
            came / 1e9 / seconds,
            copy.path,
        )
