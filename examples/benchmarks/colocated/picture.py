"""Draw the throughput of all contestants from a summary that `bench.py --summary` wrote.

python examples/benchmarks/colocated/picture.py results/DATE.json docs/_static/throughput.png
"""

import json
import sys
from pathlib import Path

QUIET = 0.05
"""Share of the CPUs that other processes may take: beyond, figures mean little."""


def draw(results: Path, target: Path) -> None:
    """Write a bar per contestant, longest first, with the least and the most of the rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = json.loads(results.read_text())
    rows = sorted(found["seeds_per_s"], key=lambda row: row["median"])
    medians = [row["median"] for row in rows]
    spread = [
        [row["median"] - row["least"] for row in rows],
        [row["most"] - row["median"] for row in rows],
    ]
    colors = ["tab:orange" if row["contestant"] == "gigl_loader" else "tab:gray" for row in rows]
    height = max(2.9, 1.15 + 0.35 * len(rows))
    figure, axis = pyplot.subplots(figsize=(7, height), dpi=110, layout="constrained")
    axis.barh([row["contestant"] for row in rows], medians, xerr=spread, color=colors, capsize=3)
    widest = max(row["most"] for row in rows)
    for position, row in enumerate(rows):
        axis.text(row["most"] + 0.016 * widest, position, f"{row['median']:,}", va="center")
    axis.set_xlim(0, 1.15 * widest)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.spines[["top", "right"]].set_visible(False)
    axis.set_title("Seeds/s in a training process, one sampling worker", fontsize=11)
    busy = found.get("others_cpu", 0.0) > QUIET
    note = "; other processes ran: not to be quoted" if busy else ""
    axis.set_xlabel(f"{found['machine']}; {found['date']}{note}", fontsize=8)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target)
    pyplot.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
