"""What a storage server exports for Prometheus, and who may read it."""

import json
import logging
import re
import select
import shutil
import socket
import ssl
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gigl_loader import ConfigError
from gigl_loader.graph_store.server.metrics import (
    COUNTERS,
    GAUGES,
    MetricsListener,
    ServerCounts,
    _JobCounts,
    metric_name,
)
from gigl_loader.loader.epochs.epoch import LoaderStats
from gigl_loader.runtime.logs import WhereFilter, answering, know
from gigl_loader.runtime.transport import Security
from gigl_loader.runtime.transport.certs import make_folder
from tests.graph_store.in_process import SECURITY, channel_of, joined, start, storage, take
from tests.graph_store.store_cluster import HOST, free_port
from tests.support.conditions import SetConstants

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "examples" / "graph_store" / "dashboard.json"
PAGES = [
    ROOT / "docs" / "guide" / f"{name}.md" for name in ("training_loop", "graph_store_operation")
]

ANYWHERE = "0.0.0.0"
"""All addresses of this machine: beyond loopback, too."""
EMPTY: dict[str, Any] = {
    "server_rank": 3,
    "producers": {},
    "totals": ServerCounts().totals(),
    "health": "serving",
    "jobs": {},
}


@contextmanager
def _listening(
    status: Any = EMPTY, security: Security = SECURITY, host: str = HOST
) -> Iterator[str]:
    """Give the address of a listener's metrics."""
    found = status if callable(status) else lambda: status
    listener = MetricsListener(found, host, 0, security)
    try:
        yield f"{HOST}:{listener.port}/metrics"
    finally:
        listener.close()


def _read(url: str, context: ssl.SSLContext | None = None) -> dict[str, dict[str, float]]:
    """Return the values by name, and by job and worker, as far as there are any."""
    with urllib.request.urlopen(url, timeout=60, context=context) as answer:
        text = answer.read().decode()
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert "server" in sample.labels
            labels = [sample.labels.get(name, "") for name in ("job", "worker")]
            found.setdefault(sample.name, {})[" ".join(filter(None, labels))] = sample.value
    return found


@pytest.mark.multiprocess
def test_an_epoch_is_counted() -> None:
    """30 batches of 2 seeds, all of worker 0; the sums outlive the producer."""
    with (
        storage() as (endpoint,),
        _listening(endpoint.server.status) as url,
        joined(endpoint.address) as cluster,
    ):
        before = _read(f"http://{url}")
        assert before["gigl_loader_batches_total"] == {"": 0.0, "train": 0.0}
        assert before["gigl_loader_clients"] == {"": 0.0, "train": 1.0}
        with channel_of(cluster) as channel:
            start(channel, 0)
            assert len(take(channel)) == 30
            found = _read(f"http://{url}")
            assert found["gigl_loader_producers"] == {"": 0.0, "train": 1.0}
        totals = endpoint.server.status()["totals"]["train"]
        (number,) = endpoint.server.status()["producers"]
        endpoint.server.destroy_sampling_producer(number)
        after = _read(f"http://{url}")
    assert found["gigl_loader_batches_total"] == {"": 0.0, "train": 30.0}
    assert found["gigl_loader_seeds_total"] == {"": 0.0, "train": 60.0}
    assert found["gigl_loader_bytes_total"]["train"] > 60 * 8
    assert found["gigl_loader_restarts_total"] == {"": 0.0, "train": 0.0}
    assert found["gigl_loader_serving"] == {"": 1.0}
    stages = (
        found["gigl_loader_sample_seconds_total"]["train"],
        found["gigl_loader_gather_seconds_total"]["train"],
    )
    assert min(stages) > 0
    assert 0 < found["gigl_loader_worker_busy_seconds_total"]["train 0"] <= sum(stages) * 1.0001
    assert after["gigl_loader_producers"] == {"": 0.0, "train": 0.0}
    for name in COUNTERS:
        assert after[metric_name(name)] == pytest.approx(found[metric_name(name)]), name
    assert totals["batches"] == 30


def test_names_are_those_of_stats_and_of_the_guide() -> None:
    with _listening() as url:
        exported = set(_read(f"http://{url}"))
    busy = metric_name("worker_busy_s")  # has no value before there is a worker
    assert exported | {busy} == {metric_name(name) for name in (*COUNTERS, *GAUGES)}
    of_servers = {"jobs_served", "refused", "queue_bytes", "clients", "producers", "serving"}
    assert {*COUNTERS, *GAUGES} - of_servers <= set(LoaderStats().summary())
    text = "".join(page.read_text() for page in PAGES)
    shared = dict(re.findall(r"^\| `(\w+)` \| .* \| `(gigl_loader_\w+)` \|$", text, re.MULTILINE))
    own = set(re.findall(r"^\| `(gigl_loader_\w+)` \|", text, re.MULTILINE))
    assert shared == {name: metric_name(name) for name in {*COUNTERS, *GAUGES} - of_servers}
    assert own == {metric_name(name) for name in of_servers}


def test_the_dashboard_asks_for_what_there_is() -> None:
    board = json.loads(DASHBOARD.read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    expressions += [one["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    asked = {name for text in expressions for name in re.findall(r"gigl_loader_\w+", text)}
    assert asked == {metric_name(name) for name in (*COUNTERS, *GAUGES)}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for text in expressions:
        assert text.count("(") == text.count(")")
        assert text.count("{") == text.count("}")


def test_sums_of_producers_that_ended_are_kept() -> None:
    counts = ServerCounts()
    for producer in range(3):
        for worker in (0, 1):
            stats = {
                "worker": worker,
                "seeds": 4,
                "nbytes": 100,
                "sample_s": 2.0,
                "gather_s": 1.0,
                "ended_ns": 10**12,
                "restarts": producer,
            }
            counts.add(stats, "train", producer)
    before = counts.totals()
    assert before[""]["batches"] == 0
    assert before["train"] == {
        "batches": 6,
        "seeds": 24,
        "bytes": 600,
        "sample_s": 12.0,
        "gather_s": 6.0,
        "worker_busy_s": {0: 9.0, 1: 9.0},
        "restarts": 3,
    }
    counts.forget("train", 2)
    counts.forget("train", 0)
    counts.forget("train", 9)  # that handed out nothing
    assert counts.totals() == before
    assert all(producer in (1, "past") for producer, _ in counts._jobs["train"].counts.busy_s)


def test_the_rate_of_a_job_is_that_of_the_last_seconds() -> None:
    job = _JobCounts()
    assert job.seeds_per_s(0.0) == 0.0
    for step in range(200):
        job.add_seeds(5, step / 10)
    assert job.seeds_per_s(20.0) == pytest.approx(50.0, rel=0.03)
    assert len(job._seeds) < 20
    assert job.seeds_per_s(25.0) == pytest.approx(25.0, rel=0.1)
    assert job.seeds_per_s(100.0) == 0.0


def test_names_without_end_do_not_fill_the_memory(constants: SetConstants) -> None:
    constants("gigl_loader.graph_store.server.metrics", _MOST_JOBS=3)
    counts = ServerCounts()
    for number in range(10):
        counts.add({"seeds": 1}, f"job {number}", number)
    assert list(counts.totals()) == ["", "job 7", "job 8", "job 9"]
    counts.forget("job 0", 0)


def test_who_may_read(tmp_path: Path) -> None:
    """Beyond loopback, only with a certificate: a plain reader and one without get nothing."""
    folder = make_folder(tmp_path / "tls", [HOST])
    security = Security.resolve(tls_dir=str(folder), token="", insecure=False)
    with _listening(security=security, host=ANYWHERE) as url:
        reader = ssl.create_default_context(cafile=f"{folder}/ca.pem")
        reader.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
        with pytest.raises((OSError, ssl.SSLError)):
            _read(f"https://{url}", reader)
        reader.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
        assert _read(f"https://{url}", reader)["gigl_loader_serving"] == {"": 1.0}
        with pytest.raises(OSError, match=r".*"):
            _read(f"http://{url}")
    for security, match in (
        (Security.local(), "--insecure"),
        (Security.resolve(tls_dir="", token="0123456789abcdef" * 4, insecure=False), "a token"),
    ):
        with pytest.raises(ConfigError, match=match):
            MetricsListener(lambda: EMPTY, ANYWHERE, 0, security)
    insecure = Security.resolve(tls_dir="", token="", insecure=True)
    with _listening(security=insecure, host=ANYWHERE) as url:
        assert _read(f"http://{url}")


def test_a_client_that_says_nothing_holds_up_no_other() -> None:
    with _listening() as url:
        port = int(url.split(":")[1].partition("/")[0])
        with socket.create_connection((HOST, port)):
            assert _read(f"http://{url}")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            _read(f"http://{HOST}:{port}/secrets")


def test_strangers_are_few_at_a_time_and_a_scrape_gets_through() -> None:
    with _listening() as url, ExitStack() as stack:
        port = int(url.split(":")[1].partition("/")[0])
        for number in range(200):
            stranger = stack.enter_context(socket.create_connection((HOST, port)))
            with suppress(OSError):  # it was shed already
                stranger.sendall(b"GET /metrics HTTP/1.1\r\n"[: number % 24])
        assert _read(f"http://{url}")["gigl_loader_serving"] == {"": 1.0}
        threads = [one for one in threading.enumerate() if one.name.startswith("metrics")]
        assert 0 < len(threads) <= 1 + 64 + 1


@pytest.mark.parametrize("drip", [b"x", b"GET /metrics HTTP/1.1\r\nA: "])
def test_a_request_has_one_time_however_it_comes(constants: SetConstants, drip: bytes) -> None:
    """Not ten seconds after each byte."""
    constants("gigl_loader.graph_store.server.metrics", _REQUEST_S=0.5)
    with _listening() as url:
        port = int(url.split(":")[1].partition("/")[0])
        with socket.create_connection((HOST, port)) as sock, suppress(OSError):
            for _ in range(600):  # for half a minute
                sock.sendall(drip)
                drip = b"x"
                if select.select([sock], [], [], 0.05)[0]:
                    break
            else:
                pytest.fail("the connection outlived its time")
        assert _read(f"http://{url}")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nA: " + b"a" * 9000, b"400"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"\x16\x03\x01\x02\x00", b"400"),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", b"200"),
    ],
)
def test_other_requests_are_answered_at_once(request_: bytes, status: bytes) -> None:
    with _listening() as url:
        port = int(url.split(":")[1].partition("/")[0])
        with socket.create_connection((HOST, port)) as sock:
            sock.sendall(request_)
            assert sock.recv(12) == b"HTTP/1.1 " + status


def test_renewed_certificates_are_read_and_a_former_authority_is_refused(tmp_path: Path) -> None:
    folders = [make_folder(tmp_path / name, [HOST]) for name in ("former", "renewed")]
    readers = []
    for folder in folders:
        reader = ssl.create_default_context(cafile=f"{folder}/ca.pem")
        reader.load_cert_chain(f"{folder}/cert.pem", f"{folder}/key.pem")
        readers.append(reader)
    used = shutil.copytree(folders[0], tmp_path / "used")
    security = Security.resolve(str(used), "", False)
    with _listening(security=security, host=ANYWHERE) as url:
        assert _read(f"https://{url}", readers[0])
        shutil.copytree(folders[1], used, dirs_exist_ok=True)
        assert _read(f"https://{url}", readers[1])
        readers[0].load_verify_locations(f"{folders[1]}/ca.pem")  # he would take the new one
        with pytest.raises(OSError, match=r".*"):
            _read(f"https://{url}", readers[0])


def test_what_cannot_be_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on 127\.0\.0\.1:{port}"):
            MetricsListener(lambda: EMPTY, HOST, port, SECURITY)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"pip install 'gigl_loader\[metrics\]'"):
        MetricsListener(lambda: EMPTY, HOST, free_port(), SECURITY)


def test_a_log_line_says_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def where() -> str:
        record = logging.LogRecord("gigl_loader", logging.INFO, "", 1, "words", (), None)
        assert WhereFilter().filter(record)
        return str(vars(record)["where"]).rpartition(" host=")[0]

    monkeypatch.setenv("RANK", "5")
    assert where() == "rank=5"
    know(server=1)
    try:
        assert where() == "server=1"
        with answering(job=2, rank=3):
            assert where() == "server=1 job=2 rank=3"
        assert where() == "server=1"
    finally:
        know(server=None)
