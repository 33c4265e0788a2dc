"""The output of a layer, in memory or in mapped files that survive a killed process.

A folder (one per node type on a heterogeneous graph) has, for each rank (``part``)::

    part-00000.ids.npy     global ids, ascending
    part-00000.npy         rows of the last layer
    _part-00000.layer0     rows of the first layer, while they are needed; those of the last one
                           until they are complete, and beside Parquet
    _part-00000.json       the inputs of the run: a different run does not continue it
    _part-00000.log        a line for each finished chunk: layer, chunk, digest of its rows; or
                           ``LAYER - none ok`` where a layer computes nothing for the type

Complete files have a name without an underscore; readers of Parquet ignore the others.

What goes to object storage is written to the cache of this machine, where a killed run continues,
and uploaded when all ranks have computed theirs. ``_manifest.json``, with the bytes of each file by
its name, is last: results without it are not complete. For a run on other machines, finished layers
are there meanwhile, see `uploaded_layers`.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gigl_loader.errors import ConfigError, needed
from gigl_loader.runtime.digests import DIGEST_BYTES, digest_of
from gigl_loader.runtime.memory.tensors import bytes_of, dtype_name, empty_shared, map_file
from gigl_loader.runtime.object_storage.folder_cache import Cache
from gigl_loader.runtime.object_storage.object_folder import ObjectFolder, is_url
from gigl_loader.runtime.ranks.collectives import RankExchange, report_failure_to_ranks

logger = logging.getLogger(__name__)

_MANIFEST = "_manifest.json"
_RESULT = re.compile(r"(.*/)?part-\d{5}(\.ids)?\.(npy|parquet)")
_UPLOADED_LAYER = re.compile(r"(.*/)?_part-\d{5}\.layer\d+(\.note)?")
"""See `uploaded_layers`."""


class Destination:
    """Where the ranks of a run write.

    Args:
        out: A folder, or its URL; None: memory.

    Raises:
        ConfigError: The URL cannot work, or has results.
        ObjectStorageError: Object storage failed.
    """

    def __init__(self, out: str | os.PathLike[str] | None) -> None:
        self.folder = None if out is None else Path(out)
        """The folder on this machine; None: memory."""
        self.storage: ObjectFolder | None = None
        """The folder in object storage; None: there is none."""
        if out is not None and is_url(out):
            self.storage = ObjectFolder(str(out), create=True)
            self.folder = Cache().to_write(self.storage.url)
            if _MANIFEST in self.storage.sizes():
                raise ConfigError(f"{out} has results: give out= another folder, or remove them")

    def name_of(self, path: Path | None) -> Path | str | None:
        """Return the final name of a file in the folder, which is a URL in object storage."""
        if self.storage is None or self.folder is None or path is None:
            return path
        return f"{self.storage.url}/{path.relative_to(self.folder).as_posix()}"

    def publish(self, exchange: RankExchange, group: Any) -> None:
        """Upload this rank's complete files; collective. Nothing to do for a folder.

        Args:
            exchange: The ranks.
            group: Their process group.

        Raises:
            ObjectStorageError: Object storage failed. The files of this machine are kept.
            PeerError: Another rank failed.
        """
        storage, folder = self.storage, self.folder
        if storage is None or folder is None:
            return
        exchange.gather(True, bool)  # all ranks have computed theirs
        files = folder.rglob(f"part-{exchange.rank:05d}.*")
        names = [path.relative_to(folder).as_posix() for path in files]
        with report_failure_to_ranks("could not upload its results", group):
            sizes = storage.upload(folder, names, lambda nbytes: None)
        everyone = exchange.gather(sizes, dict[str, int])
        with report_failure_to_ranks("could not complete the results", group):
            if exchange.rank == 0:
                written = {name: size for each in everyone for name, size in each.items()}
                # of a run with more ranks that was killed: readers of Parquet take each file
                objects = storage.sizes()
                results = {name for name in objects if _RESULT.fullmatch(name)}
                storage.remove(results - written.keys())
                storage.write(_MANIFEST, json.dumps({"files": written}, indent=1).encode())
                # after it: until then, a run that lost its machine continues with them
                storage.remove({name for name in objects if _UPLOADED_LAYER.fullmatch(name)})
        exchange.gather(True, bool)
        # other ranks of this machine have files there, too
        for path in [*folder.rglob(f"*part-{exchange.rank:05d}.*")]:
            path.unlink()
        for path in [*folder.glob("*"), folder]:
            with suppress(OSError):
                path.rmdir()


class Results:
    """Rows by layer, in memory if there is no folder.

    Args:
        folder: The output folder; None: memory.
        part: This rank.
        ids: ``[num_own]`` int64.
        identity: The inputs that determine the rows; plain values.
        ending: Ending of the final file, ``".npy"`` or ``".parquet"``.

    Raises:
        ConfigError: The folder has results of another run.
    """

    def __init__(
        self,
        folder: Path | None,
        part: int,
        ids: Tensor,
        identity: dict[str, Any],
        ending: str = ".npy",
    ) -> None:
        self._folder, self._part, self._ids, self._ending = folder, part, ids, ending
        self._num_rows = ids.numel()
        self.identity: dict[str, Any] = {}
        """The inputs that determine the rows and their positions; empty in memory."""
        self._done: dict[int, dict[int, str]] = {}
        self._nothing: set[int] = set()
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        # the same number of ranks may hold other nodes: rows are stored by position, not by id
        digest = tensor_digest(ids)
        # before anything is written: the folder may belong to another run
        self.identity = {**identity, "ids": digest, "format": ending}
        self._check_identity()
        self._read_log()
        # each line goes to the kernel at once
        self._log = open(self._path(".log"), "a", buffering=1)  # noqa: SIM115 - closed by close()
        # or the next line would be joined to an incomplete one, and lost with it
        if self._cut_off:
            self._log.write("\n")

    def _path(self, ending: str) -> Path:
        assert self._folder is not None
        # two names in one: a private one, and the final one when it is complete
        start = "" if ending in (".npy", ".ids.npy", ".parquet") else "_"
        return self._folder / f"{start}part-{self._part:05d}{ending}"

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """Return the names of the inputs in which another run's `identity` differs, sorted."""
        names = {*other, *self.identity}
        return sorted(name for name in names if other.get(name) != self.identity.get(name))

    def _check_identity(self) -> None:
        path, identity = self._path(".json"), self.identity
        if path.exists():
            before = json.loads(path.read_text())
            if changed := self.differences(before):
                raise ConfigError(
                    f"{path} is of a run that differs in {changed}: give out= another folder, or "
                    "remove this one"
                )
        for file in (self._path(".npy"), self._path(".parquet")):
            if file.exists() and not path.exists():
                raise ConfigError(
                    f"{file} was not written by such a run: give out= another folder, or remove it"
                )
        half = path.with_suffix(".json.half")
        half.write_text(json.dumps(identity, indent=1) + "\n")
        os.replace(half, path)  # a killed run leaves all of it or nothing

    def _read_log(self) -> None:
        path = self._path(".log")
        text = path.read_text() if path.exists() else ""
        self._cut_off = bool(text) and not text.endswith("\n")
        for line in text.splitlines():
            words = line.split()
            if len(words) != 4 or words[3] != "ok":  # the last line may be cut off
                continue
            # the format is in the module's docstring; a line without "ok" at its end was not
            # finished
            if words[1] == "-":
                self._nothing.add(int(words[0]))
            else:
                self._done.setdefault(int(words[0]), {})[int(words[1])] = words[2]

    def existing(self, layer: int, *, last: bool) -> Tensor | None:
        """Return the rows of a layer from an earlier run, finished or not."""
        if self._folder is None or layer not in self._done:
            return None
        path = self.layer_path(layer)
        if last and self._ending == ".npy" and self._path(".npy").exists():
            path = self._path(".npy")  # an earlier run finished it
        try:
            # r+: an unfinished layer continues in the same file. A truncated one is extended again,
            # with zeros: the digests of its last chunks do not match them.
            rows = torch.from_numpy(np.load(path, mmap_mode="r+"))
        except (OSError, ValueError):  # removed, or with an incomplete header
            rows = None
        if rows is None or len(rows) != self._num_rows:
            # the log's lines about it are about rows that are gone
            self._done.pop(layer)
            return None
        return rows

    def create(self, layer: int, width: int, dtype: torch.dtype, *, last: bool) -> Tensor:
        """Return ``[num_own, width]`` for the rows of a layer."""
        shape = (self._num_rows, width)
        if self._folder is None:
            # the next layer's ranks read it
            return (
                torch.empty(shape, dtype=dtype, device="cpu")
                if last
                else empty_shared(shape, dtype)
            )
        if last:  # of an earlier run, and no longer whole
            self.withdraw(layer)
        path = self.layer_path(layer)
        if self._num_rows == 0:  # nothing can be mapped
            _save(path, np.empty(shape, dtype_name(dtype)))
            return torch.empty(shape, dtype=dtype, device="cpu")
        return torch.from_numpy(
            np.lib.format.open_memmap(path, "w+", np.dtype(dtype_name(dtype)), shape)
        )

    def offered(self, layer: int, rows: Tensor) -> Tensor:
        """Return a finished layer's rows in memory that other ranks can map."""
        if self._folder is None or rows.numel() == 0:
            return rows
        path = self.layer_path(layer)
        size = path.stat().st_size
        # numpy's header is before the rows
        values = map_file(path, "uint8", (size,))[size - len(bytes_of(rows)) :]
        return values.view(rows.dtype).view(rows.shape)

    def withdraw(self, layer: int) -> None:
        """Remove the name of the last layer's file: damaged rows of it are computed again."""
        if self._folder is not None and self._path(".npy").exists():
            os.replace(self._path(".npy"), self.layer_path(layer))

    def finish(self, layer: int) -> None:
        """Give the files of the last layer their names, after all rows are written."""
        if self._folder is None or self._ending != ".npy" or self._path(".npy").exists():
            return
        rows = self.layer_path(layer)
        if rows.exists():  # it may compute nothing for the type
            # ids first: a reader that finds the rows also finds their ids
            _save(self._path(".ids"), self._ids.numpy())
            os.replace(self._path(".ids"), self._path(".ids.npy"))
            os.replace(rows, self._path(".npy"))

    def finished(self, layer: int, rows: Tensor, bounds: Any) -> set[int]:
        """Return the chunks that an earlier run finished and whose rows are unchanged."""
        kept = set()
        for chunk, digest in self._done.get(layer, {}).items():
            start, stop = bounds(chunk)
            # The log may be on disk without the rows: after a power failure, the order of writes is
            # not guaranteed.
            if tensor_digest(rows[start:stop]) == digest:
                kept.add(chunk)
            else:
                logger.warning("chunk %d of layer %d was damaged: computing it again", chunk, layer)
        return kept

    def note(self, layer: int, chunk: int, rows: Tensor) -> None:
        """Note that a chunk's rows have been written."""
        if self._folder is not None:
            # After the rows: they are in a shared mapping, which survives a killed process as a
            # whole. The line is with the kernel, too; neither is synced, see finished().
            self._note(layer, chunk, tensor_digest(rows))

    def _note(self, layer: int, chunk: int, digest: str) -> None:
        self._done.setdefault(layer, {})[chunk] = digest
        self._log.write(f"{layer} {chunk} {digest} ok\n")

    def note_nothing(self, layer: int) -> None:
        """Note that the layer computes nothing for this node type."""
        self._nothing.add(layer)
        if self._folder is not None:
            self._log.write(f"{layer} - none ok\n")

    def has_nothing(self, layer: int) -> bool:
        """Return whether it was noted that a layer computes nothing."""
        return layer in self._nothing

    def layer_path(self, layer: int) -> Path:
        """Return the file of a layer's rows before they are results."""
        return self._path(f".layer{layer}")

    def chunks(self, layer: int) -> dict[int, str] | None:
        """Return the digest of each noted chunk of a layer.

        It is empty if the layer computes nothing for this node type; None: nothing was noted.
        """
        return {} if self.has_nothing(layer) else self._done.get(layer)

    def adopt(self, layer: int, chunks: Mapping[int, str]) -> None:
        """Note the chunks of a layer whose rows came from elsewhere; none: it has no rows."""
        if not chunks:
            self.note_nothing(layer)
        self._done.pop(layer, None)
        for chunk, digest in chunks.items():
            self._note(layer, chunk, digest)

    def forget(self, layer: int) -> None:
        """Remove the file of a layer that is no longer read."""
        if self._folder is not None:
            self.layer_path(layer).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the log."""
        if self._folder is not None:
            self._log.close()

    def path(self) -> Path | None:
        """Return the path of the final file."""
        return None if self._folder is None else self._path(self._ending)

    @property
    def draft(self) -> Path | None:
        """The path of that file until it is complete."""
        return None if self._folder is None else self._path(f"{self._ending}.half")


def _save(path: Path, array: Any) -> None:
    with path.open("wb") as file:  # given a name, numpy would append ".npy"
        np.save(file, array)


def tensor_digest(rows: Tensor) -> str:
    """Return a digest of the bytes of a tensor on the CPU."""
    # as bytes: numpy has no bfloat16
    data = rows.contiguous().view(-1).view(torch.uint8).numpy()
    return digest_of(data.data)


def model_digest(model: Any) -> str:
    """Return a digest of a model: structure and values of everything that is a module in it."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    module: Any
    for module in [model] if isinstance(model, torch.nn.Module) else model:
        # repr() shows settings outside the state, such as the aggregation; but a function's repr
        # has its address in memory, which differs in the next run
        digest.update(repr(module).encode() if isinstance(module, torch.nn.Module) else b"")
        state = module.state_dict() if isinstance(module, torch.nn.Module) else {}
        for name, value in state.items():
            digest.update(name.encode())
            if isinstance(value, Tensor):
                data = value.detach().cpu().contiguous()
                digest.update(data.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# --- as Parquet: id, node (int64) and embedding (a list of fixed length) --------------------------


@dataclass(frozen=True)
class TableIds:
    """Ids that nodes have outside of the dataset."""

    column: str
    """The name of their column in the table of the nodes."""
    of_nodes: Callable[[Tensor], Any]
    """Returns the ids of nodes (``[n]`` int64), int64 or text."""


"""Gives nodes (``[n]`` int64) the ids of their tables, as ``[n]`` array."""


def check_parquet() -> None:
    """Raise `ConfigError` if Parquet cannot be written."""
    with needed('format="parquet" needs pyarrow: pip install "gigl_loader[tables]"'):
        import pyarrow.parquet  # noqa: F401


class ParquetRows:
    """Writes rows as they are computed; the file gets its name when it is complete.

    Rows go in order. A resumed run writes earlier rows again, from the mapped file that keeps them:
    a Parquet file that was not closed cannot be read.

    Args:
        path: The file.
        draft: Its name until it is complete.
        nodes: ``[n]`` int64.
        batch_size: Rows of a row group, at most.
        own: The ids of the tables; None: there is no such column.
    """

    def __init__(
        self, path: Path, draft: Path, nodes: Tensor, batch_size: int, own: TableIds | None
    ) -> None:
        self._path, self._half, self._nodes, self._batch_size = path, draft, nodes, batch_size
        self._own = own
        self._writer: Any = None
        self._schema: Any = None
        self._written = 0

    def advance(self, rows: Tensor, stop: int) -> None:
        """Write the rows up to ``stop`` that were not yet written; ``rows`` is ``[n, width]``."""
        import pyarrow as pa

        self._open(rows)
        for start in range(self._written, stop, self._batch_size):
            part = slice(start, min(start + self._batch_size, stop))
            # one flat array and a fixed length: a list of lists would create a Python object per
            # number
            flat = pa.array(rows[part].reshape(-1).numpy())
            lists = pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])
            columns = [*self._ids(self._nodes[part]), pa.array(self._nodes[part].numpy()), lists]
            # each call is a row group of its own, so that at most one chunk stays in memory
            self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema))
            self._written = part.stop

    def finish(self, rows: Tensor) -> None:
        """Write the remaining rows and give the file its name."""
        # also if no chunk was left to compute: then the whole file is written here
        self.advance(rows, len(self._nodes))
        self._writer.close()
        os.replace(self._half, self._path)

    def close(self) -> None:
        """Close an unfinished file under its temporary name."""
        if self._writer is not None:
            self._writer.close()

    def _ids(self, nodes: Tensor) -> list[Any]:
        """Return the column of the tables' ids, if there is one."""
        import pyarrow as pa

        if self._own is None:
            return []
        originals = self._own.of_nodes(nodes)
        # explicit: without texts, the type could not be inferred
        return [pa.array(originals, pa.string() if originals.dtype == object else pa.int64())]

    def _open(self, rows: Tensor) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        # the width and the type are known with the first rows only
        if self._writer is None:
            values: Any = pa.from_numpy_dtype(rows.numpy().dtype)
            own = "" if self._own is None else self._own.column
            kinds = [(own, ids.type) for ids in self._ids(self._nodes[:0])]
            for name, kind in (
                ("node", pa.int64()),
                ("embedding", pa.list_(values, rows.shape[1])),
            ):
                # as SQL compares them; the table's name stays, as readers join by it
                kinds.append((f"{name}_" if name == own.lower() else name, kind))
            self._schema = pa.schema(kinds)
            self._writer = pq.ParquetWriter(self._half, self._schema)
