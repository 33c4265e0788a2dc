"""Draw the panels of the Grafana dashboard from the figures of a real run, without Grafana.

Two storage servers serve a training job and are read once a second, as Prometheus would; a worker
is killed, then a server, which is started again. Each panel's query is evaluated by this script
(``rate``, ``increase``, ``sum``, ``count``, ``max`` and a quotient) and drawn with matplotlib: what
it shows is the queries and the figures, not Grafana's looks.

    python examples/benchmarks/faults/dashboard.py docs/_static/dashboard.png
"""

import argparse
import json
import math
import os
import re
import signal
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib as mpl
from _cluster import HOST, Job, Store, write_graph
from prometheus_client.parser import text_string_to_metric_families

from gigl_loader.runtime.transport import free_port

BOARD = Path(__file__).parents[2] / "graph_store" / "dashboard.json"
WINDOW_S = 8.0
"""What ``$__rate_interval`` stands for: Grafana takes four times the interval of the scrapes."""
_GAP_S = 5.0
_SEEN = r"count\(max_over_time\((\w+)\[\w+\]\)\)"
_QUERY = r"(?:(\w+)\()?(gigl_loader_\w+)(?:\{[^}]*\})?(?:\[[^\]]*\])?\)?"
Key = tuple[tuple[str, str], ...]
Series = dict[Key, list[tuple[float, float]]]


class Scraper(threading.Thread):
    """Reads the servers once a second, as Prometheus would."""

    def __init__(self, ports: list[int]) -> None:
        super().__init__(daemon=True)
        self._ports, self.over, self.started = ports, threading.Event(), time.monotonic()
        self.found: dict[str, Series] = {}

    def run(self) -> None:
        """Read until `over` is set."""
        while not self.over.wait(1.0):
            at = time.monotonic() - self.started
            for port in self._ports:
                try:
                    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=5) as page:
                        text = page.read().decode()
                except OSError:
                    continue  # it is being started again: a gap
                self._keep(at, text)

    def _keep(self, at: float, text: str) -> None:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = tuple(sorted(sample.labels.items()))
                of_name = self.found.setdefault(sample.name, {})
                of_name.setdefault(key, []).append((at, sample.value))


def evaluate(expression: str, found: dict[str, Series]) -> Series:
    """Return the series of one of the dashboard's queries."""
    if " / " in expression:
        over, under = (evaluate(part, found) for part in expression.split(" / "))
        return {key: _quotient(over[key], under[key]) for key in over.keys() & under.keys()}
    if (match := re.fullmatch(_SEEN, expression)) is not None:
        return {(): _ever_seen(found[match[1]])}
    match = re.fullmatch(_QUERY, expression)
    if match is None or (match[1] or "rate") not in ("rate", "increase", "sum", "count", "max"):
        raise ValueError(f"this script cannot evaluate {expression!r}")
    function, series = match[1], found[match[2]]
    if function in ("rate", "increase"):
        return {key: _change(points, function == "rate") for key, points in series.items()}
    return {(): _over_all(series, function)} if function else series


def _change(points: list[tuple[float, float]], per_second: bool) -> list[tuple[float, float]]:
    """Return the growth of a counter over the window; one that starts again counts from zero."""
    grown, total, found = [], 0.0, []
    for number, (at, value) in enumerate(points):
        before = points[number - 1][1] if number else value
        total += value - before if value >= before else value
        grown.append((at, total))
        inside = [one for one in grown if one[0] >= at - WINDOW_S]
        if len(inside) > 1:
            seconds = inside[-1][0] - inside[0][0]
            found.append((at, (total - inside[0][1]) / (seconds if per_second else 1.0)))
    return found


def _quotient(
    over: list[tuple[float, float]], under: list[tuple[float, float]]
) -> list[tuple[float, float]]:
    values = dict(under)
    return [(at, value / values[at]) for at, value in over if values.get(at)]


def _over_all(series: Series, function: str) -> list[tuple[float, float]]:
    """Return the aggregate over all series, of the values of each reading."""
    readings: dict[float, list[float]] = {}
    for points in series.values():
        for at, value in points:
            readings.setdefault(at, []).append(value)
    combine: Any = {"sum": sum, "count": len, "max": max}[function]
    return [(at, float(combine(values))) for at, values in sorted(readings.items())]


def _ever_seen(series: Series) -> list[tuple[float, float]]:
    """Return at each reading how many series there have been so far."""
    first = [points[0][0] for points in series.values()]
    readings = sorted({at for points in series.values() for at, _ in points})
    return [(at, float(sum(one <= at for one in first))) for at in readings]


def _with_gaps(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points, with nothing drawn over a time in which there are none."""
    found: list[tuple[float, float]] = []
    for at, value in points:
        if found and at - found[-1][0] > _GAP_S:
            found.append((at, math.nan))
        found.append((at, value))
    return found


def draw(found: dict[str, Series], events: list[tuple[float, str]], out: Path) -> None:
    """Draw each panel, with what was done to the cluster."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    panels = json.loads(BOARD.read_text())["panels"]
    rows = -(-len(panels) // 3)
    figure, axes = plt.subplots(rows, 3, figsize=(15, 2.7 * rows), layout="constrained")
    for axis, panel in zip(axes.flat, panels, strict=False):
        _draw_panel(axis, panel, found)
        for at, _ in events:
            axis.axvline(at, color="red", linewidth=0.8, linestyle=":")
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    lines = ", then ".join(f"{what} ({at:.0f} s)" for at, what in events)
    figure.suptitle(f"examples/graph_store/dashboard.json, drawn by matplotlib. Dotted: {lines}")
    figure.savefig(out, dpi=70)


def _draw_panel(axis: Any, panel: dict[str, Any], found: dict[str, Series]) -> None:
    for target in panel["targets"]:
        for key, points in sorted(evaluate(target["expr"], found).items()):
            legend = target["legendFormat"]
            for name, value in key:
                legend = legend.replace("{{" + name + "}}", value)
            axis.plot(*zip(*_with_gaps(points), strict=True), label=legend, linewidth=1.2)
    axis.set_title(f"{panel['title']} [{panel['fieldConfig']['defaults'].get('unit', '')}]", size=9)
    top = axis.get_ylim()[1]
    axis.set_ylim(-0.04 * top, 1.04 * top)
    axis.legend(fontsize=6)
    axis.tick_params(labelsize=7)


def record(args: argparse.Namespace) -> tuple[dict[str, Series], list[tuple[float, str]]]:
    """Run the cluster; return what was read of it, and when something was killed."""
    with tempfile.TemporaryDirectory() as name:
        root, ports = Path(name, "graph"), [free_port(), free_port()]
        write_graph(root, args.nodes, 2, num_features=64)
        store = Store(root, [HOST] * 2, options=[[f"--metrics-port={port}"] for port in ports])
        job = Job(
            Path(name, "job"),
            1,
            store=store.address,
            nodes=args.nodes,
            epochs=10**6,
            reconnect=600.0,
            pace=0.005,
        )
        try:
            job.wait_for(1)
            scraper = Scraper(ports)
            scraper.start()
            time.sleep(args.seconds)
            events = [(time.monotonic() - scraper.started, "a worker of server 1 is killed")]
            os.kill(store.worker_pids(1)[0], signal.SIGKILL)
            time.sleep(args.seconds)
            events.append((time.monotonic() - scraper.started, "server 1 is killed"))
            store.restart(1, signal.SIGKILL)
            job.wait_for(len(job.notes()) + 200)
            time.sleep(args.seconds)
            scraper.over.set()
            scraper.join()
            return scraper.found, events
        finally:
            job.kill()
            store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="a PNG")
    parser.add_argument("--seconds", type=float, default=15.0, help="between what is done")
    parser.add_argument("--nodes", type=int, default=20_000)
    args = parser.parse_args()
    draw(*record(args), args.out)


if __name__ == "__main__":
    main()
