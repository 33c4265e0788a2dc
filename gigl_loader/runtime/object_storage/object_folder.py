"""A folder in object storage: S3, Google Cloud Storage, Azure, or a file system, by ``obstore``.

Requests are repeated by ``obstore`` after an error of the server or of a connection, and a body
goes on where it broke off. What fails after that is an error that names the object. Credentials
come from the environment or the machine; none is in a URL, a message or a ``repr``.
"""

import errno
import importlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gigl_loader.errors import ConfigError, ObjectStorageError, needed
from gigl_loader.runtime.files_of_others import check_bytes

SCHEMES = ("s3", "gs", "az", "file")
_READ_TIMEOUT_S, _REQUEST_TIMEOUT_S = 30.0, 600.0
"""Seconds without a byte after which a request is repeated, and for a whole one: 64 MiB at 0.1
MB/s."""
_RETRIES = 8
"""With pauses from 0.1 s to 10 s, drawn so that they double on average (hence a base of 4): half a
minute for a server that is overloaded."""
_CHUNK_BYTES = 2**20
_UPLOAD_BYTES, _MOST_UPLOADS, _PARALLEL_FILES = 16 * 2**20, 10_000, 4
"""Bytes of a part of an upload; how many parts an object may have; files at a time, each in up to
12 parts at a time."""


def is_url(root: str | os.PathLike[str]) -> bool:
    """Return whether ``root`` names a folder in object storage rather than a local one.

    Raises:
        ConfigError: It begins as a URL and is none: mistyped, or a `Path`, which loses a slash.
    """
    text = os.fspath(root)
    if re.match(r"\s*[\w+.-]+:/", text) is None:
        return False
    if not isinstance(root, str) or re.match(r"[A-Za-z][\w+.-]*://", text) is None:
        raise ConfigError(
            f"{shown_url(text)!r} is neither a path nor a URL: give it as text (a Path loses a "
            "slash) that begins as s3://bucket does; ./ before it makes it a path"
        )
    return True


def shown_url(url: str) -> str:
    """Return a URL, or what was meant as one, without what may be credentials."""
    return re.split("[?#]", re.sub(r"(?s):/.*@", "://", url))[0]


_NO_OBJECT = ("", " (NoSuchKey)", " (BlobNotFound)")
"""What `_code` returns for a missing object; "": of a local folder."""
_NO_BUCKET = (" (NoSuchBucket)", " (ContainerNotFound)")
"""What `_code` returns for a missing bucket."""


class ObjectFolder:
    """A folder in object storage; names of objects are paths below it.

    All methods raise `ConfigError` if an object is missing, and `ObjectStorageError` if requests
    were refused, or failed repeatedly.

    Args:
        url: ``s3://bucket/folder``, ``gs://bucket/folder``, ``az://container/folder`` or
            ``file:///folder``.
        create: Whether to make the folder of a ``file://`` URL; others need none.

    Raises:
        ConfigError: The URL has another form, or credentials in it; or obstore is not installed.
    """

    def __init__(self, url: str, *, create: bool = False) -> None:
        self.url = checked_url(url)
        with needed(f'{self.url} needs obstore: run pip install "gigl_loader[objects]"'):
            from_url = importlib.import_module("obstore.store").from_url
            self._obstore = importlib.import_module("obstore")
        with self._named_errors(""):
            self._store = from_url(self.url, **store_options(self.url, create=create))

    def __repr__(self) -> str:
        return f"ObjectFolder({self.url!r})"

    def read(self, name: str) -> bytes:
        """Return a small object."""
        with self._named_errors(name):
            return self._get(name)

    def find(self, name: str, most: int | None = None) -> bytes | None:
        """Return a small object, or one of ``most`` bytes; None: there is none of that name."""
        with self._named_errors(name):
            try:
                return self._get(name, most)
            except FileNotFoundError as error:
                if _code(error) not in _NO_OBJECT:  # such as a bucket that does not exist
                    raise
                return None

    def _get(self, name: str, most: int | None = None) -> bytes:
        data = bytearray()
        for chunk in self._obstore.get(self._store, name).stream(min_chunk_size=_CHUNK_BYTES):
            data += chunk
            check_bytes(len(data), f"{self.url}/{name}", most)  # a server may send without end
        return bytes(data)

    def size(self, name: str) -> int:
        """Return the bytes of an object."""
        with self._named_errors(name):
            return int(self._obstore.head(self._store, name)["size"])

    def chunks(self, name: str, start: int, stop: int) -> Iterator[Any]:
        """Yield the bytes from ``start`` to ``stop`` of an object, as buffers in order."""
        with self._named_errors(name):
            result = self._obstore.get(self._store, name, options={"range": (start, stop)})
            yield from result.stream(min_chunk_size=_CHUNK_BYTES)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of all objects below the folder, by name."""
        with self._named_errors(""):
            pages = self._obstore.list(self._store)
            return {item["path"]: item["size"] for page in pages for item in page}

    def write(self, name: str, content: Path | bytes) -> None:
        """Write an object: it appears when it is whole, or not at all."""
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        part = max(_UPLOAD_BYTES, -(-size // _MOST_UPLOADS))
        with self._named_errors(name):
            self._obstore.put(self._store, name, content, chunk_size=part)

    def upload(
        self, folder: Path, names: Iterable[str], on_bytes: Callable[[int], None]
    ) -> dict[str, int]:
        """Write files below a local folder, several at a time; return the size of each.

        ``on_bytes`` is called by this thread with the bytes of each written file.
        """
        sizes = {name: (folder / name).stat().st_size for name in names}
        with ThreadPoolExecutor(_PARALLEL_FILES) as pool:
            written = pool.map(lambda name: self.write(name, folder / name), sizes)
            for nbytes, _ in zip(sizes.values(), written, strict=True):
                on_bytes(nbytes)
        return sizes

    def remove(self, names: Collection[str]) -> None:
        """Remove objects that are there."""
        with self._named_errors(""):
            self._obstore.delete(self._store, list(names))

    def _named_errors(self, name: str) -> AbstractContextManager[None]:
        return named_errors(f"{self.url}/{name}".rstrip("/"))


@contextmanager
def named_errors(where: str, *, missing_ok: bool = False) -> Iterator[None]:
    """Raise errors that name the object and the cause, without the text of the library's.

    That text has the whole response and its URL, which may be signed: it is not chained.

    Args:
        where: The URL of the object.
        missing_ok: Whether a missing object is a ``FileNotFoundError``, not a `ConfigError`.
    """
    try:
        yield
    except ConfigError:
        raise
    except FileNotFoundError as error:
        if _code(error) in _NO_BUCKET:
            raise _bucket_error(where, error) from None
        if missing_ok:
            raise FileNotFoundError(errno.ENOENT, f"it is missing{_code(error)}", where) from None
        raise ConfigError(
            f"{where} is missing{_code(error)}: what is written there was not finished, or the "
            "URL is another one"
        ) from None
    except (importlib.import_module("obstore").exceptions.BaseError, OSError, ValueError) as error:
        if _code(error) in _NO_BUCKET or " 403 " in str(error):
            raise _bucket_error(where, error) from None
        # the response is left out: some servers return what was signed, and with which key
        line = re.split(r"[\n<{]", str(error), maxsplit=1)[0].strip(" :")
        line = re.sub(r"\?\S*", "", re.sub(r"//[^/@\s]+@", "//", line))
        if "169.254.169.254" in line:  # of machines in a cloud, asked last
            line = "there are no credentials in the environment, and none of this machine"
        raise ObjectStorageError(f"{where}: object storage failed: {line}{_code(error)}") from None


def _bucket_error(where: str, error: Exception) -> ObjectStorageError:
    """Return the error for a bucket that does not exist, or that these credentials may not use."""
    status = re.search(r"status code: (\d+(?: [A-Z][a-z]+)*)", str(error))
    said = (status[1] if status else "refused") + _code(error)
    bucket = urlsplit(where).netloc
    if _code(error) in _NO_BUCKET:
        why = f"the bucket {bucket!r} does not exist: create it, or correct its name"
    else:
        why = (
            f"the bucket {bucket!r}, or this object, may not be used with these credentials, or "
            "does not exist: check the name, and what the credentials allow"
        )
    return ObjectStorageError(f"{where}: object storage answered {said}: {why}")


def _code(error: Exception) -> str:
    """Return the name that the server gives to its error, in brackets; "": it gives none."""
    code = re.search(r"<Code>(\w+)</Code>", str(error))
    return f" ({code[1]})" if code else ""


def checked_url(url: str) -> str:
    """Return a URL without a slash at its end.

    Raises:
        ConfigError: It is none of object storage, or has credentials, whose text is left out.
    """
    parts = urlsplit(url)
    # first: no other error may show a password or a signature
    if {"@", ":"} & {*parts.netloc} or parts.query or parts.fragment:
        raise ConfigError(
            f"the URL {shown_url(url)} has more than a bucket and a folder: leave out what stands "
            "before @ and after ? or #, and give credentials in the environment, as for the tools "
            "of the provider"
        )
    if parts.scheme not in SCHEMES or (parts.scheme == "file") == bool(parts.netloc):
        raise ConfigError(
            f"{shown_url(url)} must be s3://bucket/folder, gs://bucket/folder, "
            "az://container/folder or file:///folder"
        )
    return url.rstrip("/")


def store_options(url: str, *, create: bool = False) -> dict[str, Any]:
    """Return the options of a store of ``obstore``."""
    if url.startswith("file:"):
        return {"mkdir": create}
    # a server of one's own that says so itself; never a request that was to be encrypted
    is_plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    backoff = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=10)}
    return {
        "client_options": {
            "timeout": timedelta(seconds=_REQUEST_TIMEOUT_S),
            "read_timeout": timedelta(seconds=_READ_TIMEOUT_S),
            "allow_http": is_plain and url.startswith("s3:"),
        },
        "retry_config": {"max_retries": _RETRIES, "backoff": {**backoff, "base": 4}},
    }
