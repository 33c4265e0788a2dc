"""Finished layers in object storage: after the loss of a machine, the next run continues with them.

Below the URL of the results, for each rank (``part``) and in a folder for each node type::

    _part-00000.layer0        rows, as in the cache of the machine that computed them
    _part-00000.layer0.note   the inputs of the run and the digests of the rows, under a checksum

The note is written last, so an upload without one does not count. Nothing of another run, or of
damaged rows, is used: the layer is then computed again. A layer's objects are removed when those of
the next one are there, and the last ones with the results' manifest, see `results`. The last layer
is not among them: its rows are uploaded as the results.
"""

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gigl_loader.dataset.format.mapped import BLOCK_BYTES, block_digests
from gigl_loader.errors import ConfigError, explained_limits
from gigl_loader.inference.results import Destination, Results
from gigl_loader.runtime.decoding import analysed
from gigl_loader.runtime.digests import digest_of
from gigl_loader.runtime.object_storage.fetch import Fetch, StoredFile
from gigl_loader.runtime.object_storage.object_folder import ObjectFolder
from gigl_loader.runtime.ranks.collectives import RankExchange, report_failure_to_ranks

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Note:
    """The facts of an uploaded layer by which a run decides whether it may use it."""

    identity: dict[str, Any]
    """The inputs of the run."""
    chunks: dict[int, str]
    """Digest of the rows of each chunk; empty if the layer computes nothing for the node type."""
    nbytes: int
    """Bytes of the file with the rows."""
    digests: list[str]
    """Digest of each block of it."""


class LayerUploads:
    """The finished layers of a run in object storage. All methods are collective.

    Args:
        storage: The folder of the results.
        folder: The local one.
        exchange: The ranks.
        group: Their process group.
    """

    def __init__(
        self, storage: ObjectFolder, folder: Path, exchange: RankExchange, group: Any
    ) -> None:
        self._storage, self._folder = storage, folder
        self._exchange, self._group = exchange, group
        self._present: set[str] = set()
        """Objects of this rank, of the layer that was finished last."""

    @classmethod
    def of(
        cls, destination: Destination, exchange: RankExchange, group: Any
    ) -> "LayerUploads | None":
        """Return the uploads for a destination; None: it is not in object storage."""
        if destination.storage is None or destination.folder is None:
            return None
        return cls(destination.storage, destination.folder, exchange, group)

    def keep(self, layer: int, results: Iterable[Results]) -> None:
        """Upload a finished layer unless it is there, and remove the one before.

        Raises:
            ObjectStorageError: Object storage failed. The files of this machine are kept.
            PeerError: Another rank failed.
        """
        before, self._present = self._present, set()
        with report_failure_to_ranks("could not upload a finished layer", self._group):
            for each in results:
                self._upload(layer, each)
        # until then, the layer before is the last one that all ranks can have again
        self._exchange.gather(True, bool)
        with report_failure_to_ranks("could not remove an uploaded layer", self._group):
            if before - self._present:
                self._storage.remove(before - self._present)

    def fetch(self, layer: int, lacking: Collection[Results]) -> bool:
        """Fetch a layer that ranks lack, if each of them has uploaded it.

        Args:
            layer: The layer.
            lacking: The node types of which this rank lacks rows.

        Returns:
            Whether a rank fetched something. Rows that do not match their digests are left out.

        Raises:
            ObjectStorageError: Object storage failed.
            PeerError: Another rank failed.
            ResourceError: The disk is full.
        """
        with report_failure_to_ranks("could not look for an uploaded layer", self._group):
            notes = [(each, self._find(layer, each)) for each in lacking]
        can_go_on = all(note is not None for _, note in notes)
        everyone = self._exchange.gather((bool(notes), can_go_on), tuple[bool, bool])
        if not any(lacks for lacks, _ in everyone) or not all(can for _, can in everyone):
            return False
        with report_failure_to_ranks("could not fetch an uploaded layer", self._group):
            for each, note in notes:
                if note is not None:
                    self._fetch(layer, each, note)
        return True

    def _names(self, layer: int, results: Results) -> tuple[str, str]:
        """Return the objects of the rows and of the note."""
        name = results.layer_path(layer).relative_to(self._folder).as_posix()
        return name, f"{name}.note"

    def _upload(self, layer: int, results: Results) -> None:
        chunks = results.chunks(layer)
        if chunks is None:  # this rank has no node of the type
            return
        rows, name = self._names(layer, results)
        path = results.layer_path(layer)
        nbytes = path.stat().st_size if chunks else 0
        digests = block_digests(path, nbytes) if chunks else []
        body = msgspec.json.encode(_Note(results.identity, chunks, nbytes, digests))
        note = digest_of(body).encode() + b"\n" + body
        if self._storage.find(name) != note:
            if chunks:
                self._storage.write(rows, path)
            self._storage.write(name, note)
        self._present |= {rows, name} if chunks else {name}

    def _find(self, layer: int, results: Results) -> _Note | None:
        """Return the note of a layer that this run can use; None: there is none."""
        name = self._names(layer, results)[1]
        if (data := self._storage.find(name)) is None:
            return None
        checksum, _, body = data.partition(b"\n")
        try:
            if checksum.decode() != digest_of(body):
                raise ValueError("it does not match its checksum")
            note = msgspec.json.decode(body, type=analysed(_Note))
        except ValueError as error:  # of msgspec, too
            logger.warning("%s/%s is not used: %s", self._storage.url, name, error)
            return None
        if differing := results.differences(note.identity):
            logger.warning(
                "%s/%s is not used: it is of a run that differs in %s",
                *(self._storage.url, name, differing),
            )
            return None
        return note

    def _fetch(self, layer: int, results: Results, note: _Note) -> None:
        if note.chunks:
            path, (name, note_name) = results.layer_path(layer), self._names(layer, results)
            # an unfinished or damaged one, which may have the same size
            path.unlink(missing_ok=True)
            file = StoredFile(name, note.nbytes, note.digests, BLOCK_BYTES)
            try:
                with explained_limits(f"fetching {self._storage.url}/{name} into {self._folder}"):
                    fetch = Fetch(self._storage, self._folder, [file])
                    fetch.reserve()
                    fetch.run(lambda nbytes: None)
            except ConfigError as error:  # damaged, or another run removed it
                logger.warning("layer %d is computed again: %s", layer, error)
                # or it would pass for the note of what is uploaded next
                self._storage.remove([note_name])
                path.with_name(f"{path.name}.part").unlink(missing_ok=True)
                return
        results.adopt(layer, note.chunks)
        logger.info("layer %d was fetched from %s", layer, self._storage.url)
