"""Draw the throughput of all contestants from a summary that `bench.py --summary` wrote.

python examples/benchmarks/colocated/picture.py results/DATE.json docs/_static/throughput.png

Beside the picture lies one for dark pages, such as throughput-dark.png. Both are transparent.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

QUIET = 0.05
"""Share of the CPUs that other processes may take: beyond, figures mean little."""

OURS = "gigl_loader"
INCHES = 4.0
"""Width: 400 pixels on a page, as wide as a phone; two of the file's stand for one of these."""


def draw(results: Path, target: Path) -> None:
    """Write two bars per contestant, most seeds/s first, for a light and for a dark page.

    Left are seeds/s with one worker, with the least and the most of the rounds, and a mark where
    another number of workers serves the contestant better. Right is the CPU time of a batch in all
    its processes. Names stand above the bars, which so begin at the left edge.
    """
    found = json.loads(results.read_text())
    target.parent.mkdir(parents=True, exist_ok=True)
    _draw(found, target, text="#1f2328", others="#8c959f")
    _draw(found, dark(target), text="#e6edf3", others="#6e7681")


def dark(target: Path) -> Path:
    """Return the path of the picture for dark pages."""
    return target.with_stem(f"{target.stem}-dark")


def _draw(found: Mapping[str, Any], target: Path, *, text: str, others: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = sorted(found["seeds_per_s"], key=lambda row: row["median"])
    height = 1.1 + 0.52 * len(rows)
    with pyplot.rc_context({"text.color": text, "savefig.transparent": True}):
        figure, (speed, cpu) = pyplot.subplots(
            1, 2, figsize=(INCHES, height), dpi=200, layout="constrained", width_ratios=(3, 2)
        )
        bests = [_other_best(row) for row in rows]
        most = max(
            [row["most"] for row in rows] + [best["median"] for best in bests if best is not None]
        )
        for position, (row, best) in enumerate(zip(rows, bests, strict=True)):
            color = "tab:orange" if row["contestant"] == OURS else others
            weight = "bold" if row["contestant"] == OURS else "normal"
            spread = [[row["median"] - row["least"]], [row["most"] - row["median"]]]
            speed.text(
                0,
                position + 0.27,
                row["contestant"],
                fontsize=9,
                va="bottom",
                weight=weight,
                clip_on=False,
            )
            speed.barh(
                position,
                row["median"],
                xerr=spread,
                capsize=2.5,
                height=0.42,
                color=color,
                ecolor=text,
            )
            reached = row["most"]
            figures = f"{row['median']:,}"
            if best is not None:
                speed.plot(best["median"], position, "|", color=text, markersize=12)
                reached = max(reached, best["median"])
                figures += f"; {best['median']:,} by {best['workers']}"
            _figure(speed, position, figures, reached, most, weight)
            cpu.barh(position, row["cpu_ms"], height=0.42, color=color)
            widest = max(other["cpu_ms"] for other in rows)
            _figure(cpu, position, f"{row['cpu_ms']:,.0f}", row["cpu_ms"], widest, weight)
        # beyond the longest bar there is room for no figure: that one stands within
        for axis, end in ((speed, most), (cpu, max(row["cpu_ms"] for row in rows))):
            axis.set_xlim(0, 1.02 * end)
            axis.set_ylim(-0.45, len(rows) - 0.3)
            axis.set_axis_off()
        title = {"fontsize": 9.5, "loc": "left", "weight": "bold"}
        speed.set_title("Seeds/s, one worker\n(more is better)", **title)
        cpu.set_title("CPU ms of a batch\n(less is better)", **title)
        busy = found.get("others_cpu", 0.0) > QUIET
        note = "; other processes ran: not to be quoted" if busy else ""
        figure.supxlabel(f"{found['machine']}; {found['date']}{note}", fontsize=7)
        figure.savefig(target)
        pyplot.close(figure)


def _other_best(row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the figures with the workers that serve a contestant best, if not one."""
    best: Mapping[str, Any] | None = row.get("best")
    return None if best is None or best["workers"] == 1 else best


def _figure(
    axis: Any, position: int, figure: str, reached: float, most: float, weight: str
) -> None:
    """Write a figure beside a short bar, and within a long one."""
    within = reached > most / 2
    axis.text(
        0.02 * most if within else reached + 0.02 * most,
        position,
        figure,
        fontsize=9,
        va="center",
        ha="left",
        weight=weight,
        color="black" if within else None,
    )


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
