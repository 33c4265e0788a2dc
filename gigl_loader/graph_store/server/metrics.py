"""A storage server's figures for Prometheus: ``gigl-loader serve --metrics-port``.

They are the sums behind ``loader.stats()``, under the same names: ``batches`` is
``gigl_loader_batches_total``, ``sample_s`` is ``gigl_loader_sample_seconds_total``.
"""

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

from gigl_loader.batch.message import BatchCounts
from gigl_loader.errors import ConfigError
from gigl_loader.runtime.transport import Listener, Mode, Security, is_loopback
from gigl_loader.runtime.transport.pages import Pages

_log = logging.getLogger(__name__)

_PREFIX = "gigl_loader_"
# Prometheus' default limit for a scrape, after which a client gives up
_REQUEST_S = 10.0
"""Seconds that one scrape may take, TLS included, however slowly its bytes come."""
_PAST = "past"
_NO_JOB = ""
"""Name under which the producers of processes that have not joined a job are counted."""
_MOST_JOBS = 1000
"""Most names of jobs whose sums are kept."""
_RATE_S = 10.0
"""Seconds over which a rate is measured."""

COUNTERS = {
    "batches": "batches handed to compute processes",
    "seeds": "seeds of those batches",
    "bytes": "bytes of those batches, as workers wrote them",
    "sample_s": "seconds that workers drew neighbours",
    "gather_s": "seconds that workers collected features and labels",
    "worker_busy_s": "seconds that a worker was at work; its rate is the busy share",
    "restarts": "workers that were replaced",
    "jobs_served": "compute jobs that are over",
    "refused": "connections and processes that were not let in",
}
GAUGES = {
    "queue_depth": "batches that wait to be fetched",
    "queue_bytes": "bytes of batches in memory that compute processes have not given back",
    "clients": "compute processes that are here",
    "producers": "producers, one for each loader and worker key",
    "serving": "1 where the server is well, 0 where it lost a worker or another server",
}


def metric_name(name: str) -> str:
    """Return Prometheus' name for a figure of ``stats()`` or of a server's totals."""
    unit = f"{name[:-2]}_seconds" if name.endswith("_s") else name
    return f"{_PREFIX}{unit}_total" if name in COUNTERS else f"{_PREFIX}{unit}"


class ServerCounts:
    """Sums of the batches that a server handed out, by the name of the job; safe in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, _JobCounts] = {_NO_JOB: _JobCounts()}

    def add(self, stats: dict[str, Any], job: str, producer: int) -> None:
        """Count one batch of a producer of ``job``."""
        with self._lock:
            of_job = self._jobs.get(job)
            if of_job is None:
                # Prometheus keeps a series for each name that it has seen
                while len(self._jobs) > _MOST_JOBS:
                    del self._jobs[next(name for name in self._jobs if name != _NO_JOB)]
                of_job = self._jobs[job] = _JobCounts()
            # each producer numbers its workers from 0, so the number alone would mix the times of
            # several
            of_job.counts.count(stats, (producer, stats.get("worker", 0)), producer)
            of_job.add_seeds(stats.get("seeds", 0), time.monotonic())

    def forget(self, job: str, producer: int) -> None:
        """Keep the sums of a producer that ended, and nothing else of it."""
        with self._lock:
            if job not in self._jobs:
                return
            counts = self._jobs[job].counts
            # A list, since the loop removes keys. The sums are kept, as a falling counter means a
            # restart to Prometheus; the keys are removed, or a server of many jobs would grow with
            # each of them.
            for key in [key for key in counts.busy_s if key[0] == producer]:
                past = (_PAST, key[1])
                counts.busy_s[past] = counts.busy_s.get(past, 0.0) + counts.busy_s.pop(key)
                counts.busy_until.pop(key)
            replaced = counts.restarts.pop(producer, 0)
            counts.restarts[_PAST] = counts.restarts.get(_PAST, 0) + replaced

    def totals(self) -> dict[str, dict[str, Any]]:
        """Return the sums of each job, by the names of `COUNTERS`; of no job under ``""``."""
        with self._lock:
            return {name: _sums(job.counts) for name, job in self._jobs.items()}

    def seeds_per_s(self, job: str) -> float:
        """Return the seeds per second of a job over the last seconds."""
        with self._lock:
            return self._jobs[job].seeds_per_s(time.monotonic()) if job in self._jobs else 0.0


class _JobCounts:
    """Sums of one job, and its seeds in the last seconds."""

    def __init__(self) -> None:
        self.counts = BatchCounts()
        self._seeds: deque[tuple[float, int]] = deque()
        """Seeds of each tenth of the last seconds, with the time at which it began."""

    def add_seeds(self, seeds: int, now: float) -> None:
        """Count seeds that were handed out at ``now``."""
        if not self._seeds or now - self._seeds[-1][0] > _RATE_S / 10:
            self._seeds.append((now, 0))
        began, sum_of_tenth = self._seeds[-1]
        self._seeds[-1] = began, sum_of_tenth + seeds
        self._drop_old(now)

    def seeds_per_s(self, now: float) -> float:
        """Return the rate over the last `_RATE_S`, or since it began if that is less."""
        self._drop_old(now)
        if not self._seeds:
            return 0.0
        # at least a second, as the first batches come at once
        return sum(seeds for _, seeds in self._seeds) / max(now - self._seeds[0][0], 1.0)

    def _drop_old(self, now: float) -> None:
        while self._seeds and now - self._seeds[0][0] > _RATE_S:
            self._seeds.popleft()


def _sums(counts: BatchCounts) -> dict[str, Any]:
    busy: dict[int, float] = defaultdict(float)
    for (_, worker), seconds in counts.busy_s.items():
        busy[worker] += seconds
    return {
        "batches": counts.batches,
        "seeds": counts.seeds,
        "bytes": counts.nbytes,
        "sample_s": counts.sample_s,
        "gather_s": counts.gather_s,
        "worker_busy_s": dict(sorted(busy.items())),
        "restarts": sum(counts.restarts.values()),
    }


def figures(status: dict[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the exported figures of `DistServer.status`: the server's, and those of each job."""
    own = {
        "jobs_served": status.get("jobs_served", 0),
        "refused": status.get("refused", 0),
        "serving": int(status["health"] == "serving"),
    }
    jobs: dict[str, dict[str, Any]] = {}
    for name in {**status["totals"], **status["jobs"]}:
        of_job = status["jobs"].get(name, {})
        jobs[name] = {
            **status["totals"].get(name, _sums(BatchCounts())),
            "queue_depth": of_job.get("queued_batches", 0),
            "queue_bytes": of_job.get("queued_bytes", 0),
            "clients": len(of_job.get("ranks", ())),
            "producers": len(of_job.get("producers", ())),
        }
    return own, jobs


class MetricsListener:
    """Serves ``GET /metrics`` with a `Listener` of its own, within its limits; `close` ends it.

    On the loopback address any user of this machine may read. Beyond it, clients need a certificate
    from the cluster's authority, unless ``--insecure`` opens everything. A token cannot be proved
    over plain HTTP. Each connection serves one request.

    Args:
        status: Returns `DistServer.status`.
        host: Address of this machine to listen on.
        port: 0: any that is free.
        security: Authentication beyond loopback.

    Raises:
        ConfigError: ``prometheus-client`` is not installed, the address is taken, or strangers
            could read the page.
    """

    def __init__(
        self, status: Callable[[], dict[str, Any]], host: str, port: int, security: Security
    ) -> None:
        try:  # here and below: the package is optional, and only needed with --metrics-port
            from prometheus_client import CollectorRegistry
            from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
        except ImportError as error:
            raise ConfigError(
                f"--metrics-port needs prometheus-client ({error}): "
                "pip install 'gigl_loader[metrics]'"
            ) from error
        self._status = status
        # not the global registry, which would export metrics of other libraries as the server's,
        # and where a second server in one process would be a duplicate; without `auto_describe`,
        # registering asks for no status yet
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        readers = _readers(host, security)
        pages = Pages("/metrics", CONTENT_TYPE_LATEST, lambda: generate_latest(registry), readers)
        self._listener = Listener(
            host, port, readers, {}, "metrics", admit=pages, handshake_s=_REQUEST_S
        ).start()
        self.port = self._listener.address[1]
        _log.info("metrics at %s:%d/metrics", host, self.port)

    def collect(self) -> Iterator[Any]:
        """Yield a family for each figure at a scrape.

        The label ``server`` is the server's rank, ``job`` the name of a job; empty: of no job.
        """
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        # one status for all figures, so that they belong to one moment and the server's locks are
        # taken once
        status = self._status()
        own, jobs = figures(status)
        rank = str(status["server_rank"])
        for names, kind in ((COUNTERS, CounterMetricFamily), (GAUGES, GaugeMetricFamily)):
            for name, text in names.items():
                labels: tuple[str, ...]
                rows: list[tuple[tuple[str, ...], Any]]
                if name in own:
                    labels, rows = (), [((), own[name])]
                elif name == "worker_busy_s":
                    labels = ("job", "worker")
                    rows = [
                        ((job, str(worker)), busy_s)
                        for job, values in jobs.items()
                        for worker, busy_s in values[name].items()
                    ]
                else:
                    labels, rows = ("job",), [((job,), of[name]) for job, of in jobs.items()]
                family = kind(metric_name(name), text, labels=("server", *labels))
                for values_of_labels, figure in rows:
                    family.add_metric((rank, *values_of_labels), figure)
                yield family

    def close(self) -> None:
        """End. Idempotent."""
        self._listener.close()


def _readers(host: str, security: Security) -> Security:
    """Return the authentication of readers at ``host``."""
    # first, as it refuses an address beyond loopback without authentication
    security.check_listener(host)
    if is_loopback(host):
        return Security(Mode.INSECURE)
    if security.mode is Mode.TOKEN:
        raise ConfigError(
            f"metrics at {host} can be read from other machines, and Prometheus cannot prove a "
            "token: give certificates (--tls DIR), or let it scrape the loopback address"
        )
    return security
