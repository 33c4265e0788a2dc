"""Costs of a machine's work: measured once by ``gigl-loader plan --calibrate``, kept as JSON."""

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from gigl_loader.errors import ConfigError

SHIPPED = Path(__file__).with_name("costs.json")
"""Costs of the machine that this package was developed on."""


_TEXTS = ("machine", "date")


@dataclass(frozen=True)
class Costs:
    """CPU seconds, bytes and seconds of single pieces of work."""

    machine: str
    date: str
    batch_s: float
    """CPU seconds of a batch, whatever is in it; all these are of one core."""
    edge_s: float
    """CPU seconds for an edge: drawing and labelling it."""
    node_s: float
    """CPU seconds for a distinct node: labelling it and finding its row."""
    row_byte_s: float
    """CPU seconds for a byte of a row: copying it into the batch."""
    asked_batch_s: float
    """CPU seconds of all processes for the messages of a batch that other partitions draw for."""
    asked_edge_s: float
    """CPU seconds of both ends for an edge that another partition drew: request, answer, merge."""
    asked_rows_s: float
    """CPU seconds for a batch that requests rows from other partitions."""
    asked_row_s: float
    """CPU seconds of both ends for a row of another partition, without its bytes."""
    asked_byte_s: float
    """CPU seconds for a byte of such a row."""
    cached_batch_s: float
    """CPU seconds for a batch of a loader that caches rows."""
    cached_row_s: float
    """CPU seconds for a row of another partition that a batch needs: keep it or not, find it."""
    cached_byte_s: float
    """CPU seconds for a byte of a cached row: copying it."""
    kept_batch_s: float
    """CPU seconds for a batch of a rank that caches rows of storage servers."""
    kept_row_s: float
    """CPU seconds for a row that such a batch needs."""
    kept_byte_s: float
    """CPU seconds for a byte of a row that such a cache has."""
    sent_batch_s: float
    """CPU seconds for a batch that a storage server hands out."""
    sent_edge_s: float
    """CPU seconds for an edge of a batch that a storage server hands out, with its ids."""
    sent_rows_s: float
    """CPU seconds for a batch whose rows are requested from servers."""
    sent_row_s: float
    """CPU seconds for a row that a server sends to a rank, without its bytes."""
    sent_byte_s: float
    """CPU seconds for a byte of such a row."""
    received_batch_s: float
    """CPU seconds for a batch that a rank receives."""
    received_edge_s: float
    received_rows_s: float
    received_row_s: float
    received_byte_s: float
    plain_s_per_gb: float
    """CPU seconds for 10**9 bytes, of each end of a connection."""
    tls_s_per_gb: float
    """CPU seconds for 10**9 bytes over TLS, at each end of a connection."""
    plain_gb_per_s: float
    """10**9 bytes per second of rows on a connection within the machine, or on four to a second
    host. For people: a plan's limits are cores and links."""
    tls_gb_per_s: float
    """10**9 bytes per second over TLS, measured as ``plain_gb_per_s``."""
    link_s_per_gb: float
    """CPU seconds for 10**9 bytes that cross a link, of both ends, beyond what they cost within a
    machine: packets. 0: not known, a single machine cannot measure it."""
    link_gbit: float
    """10**9 bits per second that a link to a second host carried; 0: none was given."""
    process_bytes: float
    """Memory of its own of a training process with a loader, before there is a graph."""
    supervisor_bytes: float
    """Memory of the process that starts a loader's workers and watches them."""
    worker_bytes: float
    """Memory of a sampling process."""
    library_bytes: float
    """Bytes of the libraries that all of them map, once for each machine."""
    process_start_s: float
    """CPU seconds of a training process until its first batch: imports, mostly."""
    supervisor_start_s: float
    """CPU seconds to start the process that starts a loader's workers."""
    worker_start_s: float
    """CPU seconds to start a sampling process."""
    load_s_per_gb: float
    """Seconds for 10**9 bytes of a partition, whose files are in the page cache."""
    spread: float
    """How far rounds of the measurement were apart, as a share: half of the range."""

    @classmethod
    def read(cls, path: Path) -> "Costs":
        """Return the costs in a file.

        Raises:
            ConfigError: It cannot be read, or is something else.
        """
        try:
            content = json.loads(path.read_text())
        except OSError as error:
            raise ConfigError(f"costs {path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"costs {path} are no JSON: {error}") from error
        # All and no others: a file of another version has other kinds of work, and a plan with some
        # of them at 0 would promise too much.
        names = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or set(content) != names:
            raise ConfigError(
                f"costs {path} must have the keys {', '.join(sorted(names))}: make them with "
                "gigl-loader plan --calibrate FILE"
            )
        for name, value in content.items():
            # JSON has true, which is an int, and Python's reads NaN and Infinity.
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if name not in _TEXTS and not (is_number and 0 <= value < math.inf):
                raise ConfigError(f"costs {path}: {name} must be a number >= 0, got {value!r}")
        return cls(**content)

    def write(self, path: Path) -> None:
        """Write them to a file."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")
