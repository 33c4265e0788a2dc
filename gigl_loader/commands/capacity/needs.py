"""A job and its needs: costs, memory, connections, open files, time until the first batch.

`Job` is the subject of a plan: a graph, its sampling, and the machines. `Costs` of a machine's work
are measured once by ``gigl-loader plan --calibrate`` and kept as JSON. Memory is that of a machine
by part, with the terms of the code::

    graph        what partitions lie in          dataset/: shared, once per machine
    slots        finished batches                batch/slots.py: of workers, read by trainers
    threads      batches being made              sampler/: work memory of each sampling thread
    requests     requested rows, rows to send    sampler/rows/reader.py: one matrix for each thread
                                                 that requests, one for each that responds
    cache        rows kept, and its tables       sampler/row_cache/tables.py: shared, once per
    machine processes    their memory without a graph    measured

Work memory is kept for the next batch (`Scratch`, `keep_freed_memory`), so the maximum of one batch
is held all the time.
"""

import json
import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal

from gigl_loader.commands.capacity.expect import BatchSize, DegreeDistribution
from gigl_loader.dataset.partition.partition_view import Matrix, Owner
from gigl_loader.errors import ConfigError
from gigl_loader.sampler.row_cache.tables import WINDOW, RowTables

SHIPPED = Path(__file__).with_name("costs.json")
"""Costs of the machine that this package was developed on."""


_TEXTS = ("machine", "date")


@dataclass(frozen=True)
class Costs:
    """CPU seconds, bytes and seconds of single pieces of work."""

    machine: str
    date: str
    batch_s: float
    """CPU seconds of a batch, without its contents; all these are of one core."""
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
    """CPU seconds for a row of another partition in a batch: cache decision and look-up."""
    cached_byte_s: float
    """CPU seconds for a byte of a cached row: copying it."""
    kept_batch_s: float
    """CPU seconds for a batch of a rank that caches rows of storage servers."""
    kept_row_s: float
    """CPU seconds for a row that such a batch needs."""
    kept_byte_s: float
    """CPU seconds for a byte of a row that such a cache has."""
    sent_batch_s: float
    """CPU seconds for a batch sent by a storage server."""
    sent_edge_s: float
    """CPU seconds for an edge of a batch sent by a storage server, with its ids."""
    sent_rows_s: float
    """CPU seconds for a batch whose rows are fetched from servers."""
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
    """CPU seconds for 10**9 bytes over a link, of both ends, beyond their cost within a machine:
    packets. 0: not known, as a single machine cannot measure it."""
    link_gbit: float
    """10**9 bits per second over a link to a second host; 0: there was no second host."""
    process_bytes: float
    """Private memory of a training process with a loader, without a graph."""
    supervisor_bytes: float
    """Memory of the supervisor."""
    worker_bytes: float
    """Memory of a sampling process."""
    library_bytes: float
    """Bytes of the libraries that all of them map, once per machine."""
    process_start_s: float
    """CPU seconds of a training process until its first batch: imports, mostly."""
    supervisor_start_s: float
    """CPU seconds to start the supervisor."""
    worker_start_s: float
    """CPU seconds to start a sampling process."""
    load_s_per_gb: float
    """Seconds for 10**9 bytes of a partition whose files are in the page cache."""
    spread: float
    """Spread between rounds of the measurement, as a share: half of the range."""

    @classmethod
    def read(cls, path: Path) -> "Costs":
        """Return the costs in a file.

        Raises:
            ConfigError: It cannot be read, or has other contents.
        """
        try:
            content = json.loads(path.read_text())
        except OSError as error:
            raise ConfigError(f"costs {path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"costs {path} are no JSON: {error}") from error
        # Exactly these: a file of another version has other kinds of work, and a plan with some of
        # them at 0 would promise too much.
        names = {field.name for field in fields(cls)}
        if not isinstance(content, dict) or set(content) != names:
            raise ConfigError(
                f"costs {path} must have the keys {', '.join(sorted(names))}: make them with "
                "gigl-loader plan --calibrate FILE"
            )
        for name, value in content.items():
            # JSON has true, which is a Python int, and Python's reader accepts NaN and Infinity.
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if name not in _TEXTS and not (is_number and 0 <= value < math.inf):
                raise ConfigError(f"costs {path}: {name} must be a number >= 0, got {value!r}")
        return cls(**content)

    def write(self, path: Path) -> None:
        """Write them to a file."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


Deployment = Literal["colocated", "graph-store"]

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "bool": 1,
}
BOOKS = "books"
"""Key of `Job.resident` for the partition books, which are the same in each part."""
CONCURRENCY = 4
"""Batches under way per worker, and fetches per server: the loaders' default."""


@dataclass(frozen=True)
class Job:
    """A graph, its sampling, and the machines."""

    nodes: float
    edges: float
    dim: int
    """Columns of the node features."""
    num_neighbors: tuple[int, ...]
    batch_size: int
    machines: int
    """Training machines."""
    dtype: str = "float32"
    ranks_per_machine: int = 1
    num_workers: int = 1
    """Sampling processes of each rank; graph store: of each server and rank."""
    cores: int = 16
    """CPU cores of each machine."""
    link_gbit: float = 10.0
    """10**9 bits per second of a machine, in each direction."""
    step_ms: float = 0.0
    """Milliseconds of the model for a batch; 0: loading only."""
    deployment: Deployment = "colocated"
    num_servers: int = 0
    """Storage machines of a graph store."""
    jobs: int = 1
    """Equal jobs that use the graph store at once; seeds/s and ranks are those of one of them."""
    remote_cache: float = 0.0
    """Share of the rows of other machines that each machine caches."""
    encrypted: bool = False
    resident: tuple[tuple[str, float], ...] = ()
    """Bytes by part of the largest partition in memory; empty: predicted, not known."""
    memory_gb: float | None = None
    """10**9 bytes of each machine; None: not checked."""
    disk_gb_per_s: float = 1.0
    """Read speed of partitions in 10**9 bytes per second."""
    remote_share: float | None = None
    """Share of neighbours in other partitions. None: as with random partitions."""
    all_edges: bool = False
    """Whether each machine with a partition has the edges of all, by ``edges="all"``."""
    degree_distribution: str = "uniform"
    """Degree distribution of a graph given by figures: ``"uniform"`` or ``"power-law"``."""

    def __post_init__(self) -> None:
        for name in (
            "nodes",
            "edges",
            "batch_size",
            "machines",
            "ranks_per_machine",
            "num_workers",
            "jobs",
            "cores",
            "link_gbit",
            "memory_gb",
            "disk_gb_per_s",
        ):
            value = getattr(self, name)
            # "not (>)", so that NaN, whose comparisons are all false, is refused as well.
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"{name} must be above 0, got {value}")
        if not (self.dim >= 0 and 0 <= self.step_ms < math.inf):
            raise ConfigError(f"dim and step_ms must not be negative: {self.dim}, {self.step_ms}")
        if self.dtype not in DTYPE_BYTES:
            raise ConfigError(f"dtype must be one of {', '.join(DTYPE_BYTES)}, got {self.dtype!r}")
        self._check_machines()
        for name in ("remote_cache", "remote_share"):
            share = getattr(self, name)
            if share is not None and not 0 <= share <= 1:
                raise ConfigError(f"{name} is a share, 0 to 1, got {share}")
        if self.degree_distribution not in ("uniform", "power-law"):
            raise ConfigError(
                'degree_distribution must be "uniform" or "power-law", got '
                f"{self.degree_distribution!r}"
            )

    def _check_machines(self) -> None:
        if self.deployment not in ("colocated", "graph-store"):
            raise ConfigError(
                f'deployment must be "colocated" or "graph-store", got {self.deployment!r}'
            )
        # Both are required, so that neither is guessed: a count of servers alone may be a slip.
        if (self.deployment == "graph-store") != (self.num_servers > 0) or self.num_servers < 0:
            raise ConfigError(
                'num_servers must be above 0 with deployment "graph-store", and 0 with '
                f'"colocated": got {self.num_servers} with {self.deployment!r}'
            )
        if self.jobs > 1 and not self.is_store:
            raise ConfigError(f"{self.jobs} jobs at once are of a graph store, not colocated")
        if self.parts > self.nodes:
            raise ConfigError(f"{self.nodes:,.0f} nodes cannot be in {self.parts:,} parts")

    @property
    def is_store(self) -> bool:
        """Whether storage machines are separate from training machines."""
        return self.num_servers > 0

    @property
    def parts(self) -> int:
        """Machines that hold the graph."""
        return self.num_servers or self.machines

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row of features."""
        return self.dim * DTYPE_BYTES[self.dtype]

    @property
    def share_elsewhere(self) -> float:
        """Share of a machine's samples that another machine holds."""
        if self.parts == 1:
            return 0.0
        return (1 - 1 / self.parts) if self.remote_share is None else self.remote_share

    @property
    def asks_for_neighbors(self) -> bool:
        """Whether a machine draws neighbours from another one's partition."""
        return self.parts > 1 and not self.all_edges

    @property
    def round_trips(self) -> int:
        """Requests to other machines for a batch, one after another."""
        # a rank's seeds are of its own partition, so the first hop asks nobody
        hops = len(self.num_neighbors) - 1 if self.asks_for_neighbors else 0
        rows = self.row_bytes > 0 and (self.parts > 1 or self.is_store)
        return hops + self.is_store + rows

    def with_machines(self, machines: int, servers: int) -> "Job":
        """Return the job on other machines: partitions keep their advantage over random ones."""
        # More parts are smaller ones; the book of owners has all nodes in each.
        moved = replace(self, machines=machines, num_servers=servers, remote_share=None)
        times = self.parts / moved.parts
        resident = [(name, n if name == BOOKS else n * times) for name, n in self.resident]
        moved = replace(moved, resident=tuple(resident))
        if self.remote_share is None or self.parts == 1:
            return moved
        # Relative to random parts: half as many remote neighbours remain half as many.
        drawn = 1 - 1 / self.parts
        share = min(1.0, self.remote_share * moved.share_elsewhere / drawn)
        return replace(moved, remote_share=share)

    def degrees(self) -> DegreeDistribution:
        """Return the graph from its degree distribution."""
        is_uniform = self.degree_distribution == "uniform"
        make = DegreeDistribution.uniform if is_uniform else DegreeDistribution.power_law
        return make(self.nodes, self.edges)


_GROWN = 1.25
"""Work memory that is too small grows to this multiple of the required size."""
LANES = 4
"""Connections of a worker to each other partition, each with a thread that responds."""
_HELD = 2
"""Batches beyond those under way: the current one in training, and the one it replaces."""
_MOST_GROWTH = 2.0
"""Largest growth of the batches drawn ahead, if their window does not show the next use."""
_UNDER_WAY = 3
"""Batches whose rows a client of a graph store has requested."""
_PACKED = 0.3
"""Size of the ids and edges of a batch on the wire, as a share of their size in memory."""


def memory_of(job: Job, batch: BatchSize, costs: Costs) -> tuple[dict[str, float], str]:
    """Return bytes by part of the machine with most, and the kind of machine."""
    if not job.is_store:
        return _colocated(job, batch, costs), "training"
    machines = (_storage(job, batch, costs), "storage"), (_training(job, batch, costs), "training")
    return max(machines, key=lambda machine: sum(machine[0].values()))


def graph_bytes(job: Job) -> dict[str, float]:
    """Return the memory of a partition: rows, edges, and owners; and others' edges."""
    # As `dataset/` writes: row pointers of int64 for the nodes of a part, neighbours of int32 if
    # ids fit; and 8 bytes per node for a label.
    index = 4 if job.nodes < 2**31 else 8
    nbytes = dict(job.resident) or {
        "rows and labels": job.nodes * (job.row_bytes + 8) / job.parts,
        "edges": (8 * job.nodes + index * job.edges) / job.parts,
    }
    if job.all_edges and job.parts > 1:
        # a part that owns no range of ids has a row for each node of the graph
        rows = job.parts - 1 if nbytes.get(BOOKS) else 1 - 1 / job.parts
        others = 8 * job.nodes * rows + index * job.edges * (1 - 1 / job.parts)
        nbytes["edges of other partitions"] = others
    return nbytes


def _colocated(job: Job, batch: BatchSize, costs: Costs) -> dict[str, float]:
    ranks, workers = job.ranks_per_machine, job.ranks_per_machine * job.num_workers
    is_alone = job.parts == 1
    # Threads that wait for other partitions use no processor, so all of them sample; without
    # waiting, a worker starts as many as it has cores.
    threads = workers * (cores_of_a_worker(job) if is_alone else CONCURRENCY)
    remote = batch.nodes * job.share_elsewhere * job.row_bytes
    answered = 0 if is_alone else workers * min(LANES, CONCURRENCY)
    # Finished ones wait for the trainer only if the model is the slow part; else as many slots are
    # in use as are being written.
    written = workers * CONCURRENCY if job.step_ms else threads
    nbytes = {
        **graph_bytes(job),
        "batches under way": (written + ranks * _HELD) * _slot(job, batch),
        "sampling": threads * _thread(batch)
        + answered * job.share_elsewhere * _answer_bytes(batch),
        "requested rows": threads * remote,
        "rows to send": answered * remote,
        "training processes": ranks * costs.process_bytes,
        "workers": workers * costs.worker_bytes + ranks * costs.supervisor_bytes,
        "libraries": costs.library_bytes,
    }
    # Rows of the cache are copied before a batch is put together: another batch may replace them.
    if job.remote_cache and not is_alone:
        nbytes["rows copied from the cache"] = threads * remote * batch.hit_rate
        nbytes["cache"] = cache_bytes(job, job.share_elsewhere * job.nodes)
        nbytes["batches drawn ahead"] = ranks * _ahead(job, batch) * _drawn(job, batch)
    return nbytes


def _storage(job: Job, batch: BatchSize, costs: Costs) -> dict[str, float]:
    # Each rank of each machine of each job has workers of its own on every server.
    clients = job.jobs * job.machines * job.ranks_per_machine
    workers = clients * job.num_workers
    answered = 0 if job.parts == 1 else workers * min(LANES, CONCURRENCY)
    slot = _structure(batch) if _rows_are_asked_for(job) else _slot(job, batch)
    nbytes = {
        **graph_bytes(job),
        "batches under way": clients * (job.num_workers * CONCURRENCY + _HELD) * slot,
        "sampling": workers * CONCURRENCY * _thread(batch)
        + answered * job.share_elsewhere * _answer_bytes(batch),
        "workers": workers * costs.worker_bytes + clients * costs.supervisor_bytes,
        "server": costs.process_bytes,
        "libraries": costs.library_bytes,
    }
    if _rows_are_asked_for(job):  # each client has a connection and a thread of its own
        nbytes["rows to send"] = clients * batch.nodes * job.row_bytes / job.parts
    return nbytes


def _training(job: Job, batch: BatchSize, costs: Costs) -> dict[str, float]:
    ranks, rows = job.ranks_per_machine, batch.nodes * job.row_bytes
    # A fetch from each server is answered when its batch is ready, so all of them may be here at
    # once: packed as received, and unpacked.
    fetches = CONCURRENCY * job.num_servers
    ready = fetches if job.step_ms else 1  # batches wait if the model is the slow part
    nbytes = {
        "batches under way": ranks * fetches * (1 + _PACKED) * _structure(batch),
        "rows of batches": ranks * (ready + _HELD) * rows,
        "training processes": ranks * costs.process_bytes,
        "libraries": costs.library_bytes,
    }
    if _rows_are_asked_for(job):
        nbytes["requested rows"] = ranks * _UNDER_WAY * rows
    if job.remote_cache:
        nbytes["cache"] = cache_bytes(job, job.nodes)
        nbytes["batches drawn ahead"] = ranks * _ahead(job, batch) * _structure(batch)
    return nbytes


def _rows_are_asked_for(job: Job) -> bool:
    """Return whether a graph store's batches come without rows, which ranks fetch from owners."""
    return job.is_store and (job.parts > 1 or job.remote_cache > 0)


# --- terms ----------------------------------------------------------------------------------------


def _structure(batch: BatchSize) -> float:
    """Return the bytes of a batch without rows: ids and edges, as int64."""
    return 8 * batch.nodes + 16 * batch.edges


def _slot(job: Job, batch: BatchSize) -> float:
    return _structure(batch) + batch.nodes * job.row_bytes


def _thread(batch: BatchSize) -> float:
    """Return the work memory of a sampling thread."""
    most = batch.seeds + batch.edges  # ids that get labels: of hops before, and the last draws
    # A hash table, at most half full, of a power of two; 8 bytes an entry.
    table = 1 << max(12, int(2 * most - 1).bit_length())
    labels = 8 * table + 8 * _GROWN * most
    # per edge: neighbours here, from elsewhere and merged; targets, labels, and both collected; per
    # node: owner's position, ids by owner, address, row, positions, twice for the requested
    return labels + 8 * (6 * batch.edges + 6 * batch.nodes)


def _answer_bytes(batch: BatchSize) -> float:
    """Return the work memory of a responding thread, if all of a batch were requested."""
    return 8 * 3 * (batch.edges + batch.nodes)


def _drawn(job: Job, batch: BatchSize) -> float:
    """Return the bytes of a batch that waits for its rows: ids, positions by owner, and edges."""
    return 16 * batch.edges + 8 * (3 + job.share_elsewhere) * batch.nodes


def cache_bytes(job: Job, remote_rows: float) -> float:
    """Return the bytes of a machine's cache, rows and tables; its ranks share it."""
    if not job.row_bytes or remote_rows < 1:
        return 0.0
    return _cache_tables(job, remote_rows, float(job.remote_cache)).nbytes


def share_kept(job: Job, nbytes: int) -> float:
    """Return the share of the rows of other machines that fits into a cache of ``nbytes``."""
    remote_rows = job.nodes * (1.0 if job.is_store else job.share_elsewhere)
    if not job.row_bytes or remote_rows < 1:
        return 0.0
    # The inverse of the cache's own arithmetic, so that a plan for 2 GB and a loader with 2 GB have
    # room for the same rows.
    (table,) = _cache_tables(job, remote_rows, nbytes).values()
    return min(1.0, table.capacity / int(remote_rows))


def _cache_tables(job: Job, remote_rows: float, size: int | float) -> RowTables:
    """Return the tables of a cache of ``size``, bytes or a share, for that many rows."""
    # Only bytes matter here: one type, one matrix, as wide as all columns together.
    owner: Owner = ("node", "")
    rows: dict[Matrix, tuple[str, tuple[int, ...]]]
    rows = {("node_features", ""): ("uint8", (job.row_bytes,))}
    return RowTables.of({owner: rows}, {owner: int(job.nodes)}, {owner: int(remote_rows)}, size)


def _ahead(job: Job, batch: BatchSize) -> float:
    """Return how many batches are drawn before their rows are read; see `LookAhead`."""
    share = 1.0 if job.is_store else job.share_elsewhere
    wanted, slots = batch.nodes * share, job.remote_cache * job.nodes * share
    if not wanted or not slots:
        return 0.0
    # Sizes as in `sampler/row_cache/look_ahead.py`: a window of as many batches as replace the
    # whole cache, limited by the memory for drawn batches. Twice that of the rows, or 64 MiB.
    users = job.ranks_per_machine  # of one cache
    most = max(2 * slots * job.row_bytes / users, 64 * 2**20) / _drawn(job, batch)
    window = WINDOW * slots / users / wanted
    # It grows while the next use of cached rows lies beyond it: up to the distance of uses.
    growth = min(_MOST_GROWTH, max(1.0, batch.horizon / window))
    return max(1.0, min(window * growth, most)) + CONCURRENCY * job.num_workers


def cores_of_a_worker(job: Job) -> float:
    """Return the number of cores that the threads of a worker can use; see `Worker`."""
    of_a_machine = job.ranks_per_machine * (job.jobs * job.machines if job.is_store else 1)
    return max(1.0, min(CONCURRENCY, job.cores / (of_a_machine * job.num_workers)))


# --- processes ------------------------------------------------------------------------------------


_TO_A_SERVER = 4
"""Connections of a rank: requests and rows at once, a lease, and a new one."""
_OF_A_GROUP = 2
"""Connections of a rank to the store of its process group."""
_FILES = {"training process": 18, "worker": 6, "storage server": 25}
"""Other descriptors of a process: pipes, libraries, memory. This and the following were counted in
processes with 2 and 3 partitions and ranks, on 2026-11-22."""
_FILES_OF_A_RANK = 4
"""At a storage server: pipes and memory of the producer."""
_FILES_OF_A_SLOT = 1


def connections_of(job: Job) -> dict[str, int]:
    """Return by process its maximum number of TCP connections, to all others together.

    Gloo connects every process of a process group with every other one.
    """
    ranks = job.machines * job.ranks_per_machine
    lanes = min(LANES, CONCURRENCY)
    connections = {"training process": ranks - 1 + (_OF_A_GROUP if ranks > 1 else 0)}
    if job.is_store:
        connections["training process"] += _TO_A_SERVER * job.num_servers
        clients = job.jobs * ranks
        connections["storage server"] = _TO_A_SERVER * clients + 2 * (job.num_servers - 1)
    connections["worker"] = 2 * lanes * (job.parts - 1)  # for its own requests, and for others'
    return connections


def descriptors_of(job: Job) -> dict[str, int]:
    """Return by process its number of open descriptors, the minimum for ``ulimit -n``."""
    descriptors = {name: number + _FILES[name] for name, number in connections_of(job).items()}
    # A reader of batches has the memory of each slot open: the rank itself, or the server for it.
    slots = job.num_workers * CONCURRENCY * _FILES_OF_A_SLOT
    if job.is_store:
        ranks = job.jobs * job.machines * job.ranks_per_machine
        descriptors["storage server"] += ranks * (_FILES_OF_A_RANK + slots)
    else:
        descriptors["training process"] += slots
    return descriptors


def start_of(job: Job, costs: Costs) -> dict[str, float]:
    """Return by step the seconds from the start of all processes to the first batches.

    A part is read at the speed of the disk, or of a memory copy if that is slower; ranks of a
    machine start their workers one after another.
    """
    # CPU seconds are wall seconds while there are no more processes than cores.
    part_gb = sum(graph_bytes(job).values()) / 1e9
    alone = job.ranks_per_machine
    workers_s = costs.supervisor_start_s + costs.worker_start_s * job.num_workers
    if job.is_store:  # a server starts those of all ranks at once
        ranks = job.machines * job.ranks_per_machine
        starting = max(workers_s, ranks * workers_s / job.cores)
    else:
        starting = alone * workers_s
    return {
        "processes": costs.process_start_s * max(1.0, alone / job.cores),
        "loading a part": part_gb * max(1 / job.disk_gb_per_s, costs.load_s_per_gb),
        "workers": starting,
    }
