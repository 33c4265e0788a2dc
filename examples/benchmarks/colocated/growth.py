"""What a seed costs more by: one thing is varied at a time, and the rest stays as it is.

python examples/benchmarks/colocated/bench.py --case growth --summary FILE --picture FILE

`bench.py` measures it; the charts can be drawn again from the file of ``--summary``::

    python examples/benchmarks/colocated/growth.py results/growth.json docs/_static/growth.png
"""

import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import picture
from _table import markdown, spread

AXES: dict[str, dict[str, dict[str, Any]]] = {
    "nodes of the graph": {
        "300,000": {"nodes": 300_000, "edges": 6_000_000},
        "1 million": {},
        "3 million": {"nodes": 3_000_000, "edges": 60_000_000},
    },
    "floats a node": {f"{dim}": {"dim": dim} for dim in (16, 64, 256, 512)},
    "fan-out": {
        "10": {"fanout": [10]},
        "10, 5": {"fanout": [10, 5]},
        "15, 10": {"fanout": [15, 10]},
        "10, 5, 5": {"fanout": [10, 5, 5]},
    },
    "seeds a batch": {f"{size:,}": {"batch_size": size} for size in (64, 256, 1024, 4096)},
    "workers": {"in process": {"num_workers": 0}, "1": {"num_workers": 1}, "2": {"num_workers": 2}},
    "ranks": {
        "1": {},
        "2": {"world_size": 2},
        "2, TCP": {"world_size": 2, "environment": {"GIGL_LOADER_SAME_MEMORY": "0"}},
    },
    "node types": {f"{count}": {"task": "typed", "types": count} for count in (1, 4, 16)},
}
"""By what is varied and its value: how the job differs from that of all."""
_INCHES = 4.0


def work_of(changes: Mapping[str, Any], batches: int, batch_size: int) -> dict[str, Any]:
    """Return the changes with as many batches as the seeds of ``batches`` make."""
    size = changes.get("batch_size", batch_size)
    return {"batches": max(1, batches * batch_size // size), **changes}


def table(found: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]) -> str:
    """Return what was found, by what is varied and its value, as Markdown."""
    rows = []
    for (axis, value), results in found.items():
        cpu, wall = ([figures[of] for figures in results] for of in ("cpu_us", "wall_us"))
        rows.append([f"{axis}: {value}", spread(cpu, 1), spread(wall, 1)])
    return markdown(["what", "CPU microseconds a seed", "microseconds a seed"], rows)


def costs_of(result: Mapping[str, Any], seeds: int) -> dict[str, float]:
    """Return microseconds of a seed, of a result of `bench.py`; ``seeds``: of a batch of all."""
    return {
        "cpu_us": 1e3 * result["cpu_ms_per_batch"] / seeds,
        "wall_us": 1e6 / result["seeds_per_s"],
    }


def medians(
    found: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]],
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the medians of what was found: by what is varied, and by its value."""
    axes: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    for (axis, value), results in found.items():
        axes[axis][value] = {
            of: round(statistics.median(figures[of] for figures in results), 2)
            for of in ("cpu_us", "wall_us")
        }
    return dict(axes)


def draw(results: Path, target: Path) -> None:
    """Write a chart for each of `AXES`, for a light and for a dark page."""
    found = json.loads(results.read_text())
    target.parent.mkdir(parents=True, exist_ok=True)
    _draw(found, target, text="#1f2328", other="#8c959f")
    _draw(found, picture.dark(target), text="#e6edf3", other="#6e7681")


def _draw(found: Mapping[str, Any], target: Path, *, text: str, other: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colors = {"text.color": text, "xtick.color": text, "axes.edgecolor": other}
    count = -(-len(found["axes"]) // 2)
    with pyplot.rc_context({**colors, "savefig.transparent": True}):
        figure, places = pyplot.subplots(
            count, 2, figsize=(_INCHES, 1.35 * count + 0.4), dpi=200, layout="constrained"
        )
        for place in places.flat[len(found["axes"]) :]:
            place.set_axis_off()
        for place, (axis, values) in zip(places.flat, found["axes"].items(), strict=False):
            at = range(len(values))
            cpu, wall = ([one[of] for one in values.values()] for of in ("cpu_us", "wall_us"))
            place.plot(at, wall, "o--", color=other, markersize=3, label="wall")
            place.plot(at, cpu, "o-", color="tab:orange", markersize=3.5, label="CPU")
            top = 1.35 * max(*cpu, *wall)
            for x, y in zip(at, cpu, strict=True):
                place.text(x, y + 0.05 * top, f"{y:.3g}", ha="center", va="bottom", fontsize=7)
            place.set_xticks(at, list(values), fontsize=7)
            place.set_yticks([])
            place.set_ylim(0, top)
            place.set_xlim(-0.4, len(values) - 0.6)
            place.set_title(axis, fontsize=8.5, loc="left", weight="bold")
            place.patch.set_alpha(0)
            for side in ("top", "right", "left"):
                place.spines[side].set_visible(False)
        lines, names = places.flat[0].get_legend_handles_labels()
        last = places.flat[-1]
        last.legend(
            lines[::-1],
            [f"{name} microseconds a seed" for name in names[::-1]],
            loc="center left",
            fontsize=7,
            frameon=False,
        )
        figure.supxlabel(f"{found['machine']}; {found['date']}", fontsize=6)
        figure.savefig(target)
        pyplot.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
