"""A file system of `fsspec` in object storage, by ``obstore``; import it when it is needed."""

from typing import Any

from obstore.fsspec import BufferedFile, FsspecStore

from gigl_loader.runtime.object_storage.object_folder import named_errors


class StoredFiles(FsspecStore):
    """The file system. Its errors are those of `ObjectFolder`, but for missing files."""

    async def _info(self, path: str, **options: Any) -> Any:
        with named_errors(self.unstrip_protocol(path), missing_ok=True):
            return await super()._info(path, **options)

    async def _ls(self, path: str, *args: Any, **options: Any) -> Any:
        with named_errors(self.unstrip_protocol(path), missing_ok=True):
            return await super()._ls(path, *args, **options)

    def _open(self, path: str, *args: Any, **options: Any) -> BufferedFile:
        with named_errors(self.unstrip_protocol(path), missing_ok=True):
            return _StoredFile(self, path)  # for reading: nothing here writes


class _StoredFile(BufferedFile):
    """A file that is read."""

    def read(self, length: int = -1) -> bytes:
        with named_errors(self.fs.unstrip_protocol(self.path)):
            return bytes(super().read(length))

    def close(self) -> None:
        if hasattr(self, "_reader"):  # else it could not be opened
            super().close()
