"""Draw the throughput of all contestants from a summary that `bench.py --summary` wrote.

python examples/benchmarks/colocated/picture.py results/DATE.json docs/_static/throughput.png
"""

import json
import sys
from pathlib import Path

QUIET = 0.05
"""Share of the CPUs that other processes may take: beyond, figures mean little."""


OURS = "gigl_loader"
INCHES = 4.0
"""Width: 400 pixels on a page, as wide as a phone; two of the file's stand for one of these."""


def draw(results: Path, target: Path) -> None:
    """Write a bar per contestant, longest first, with the least and the most of the rounds.

    Names stand above their bars, which so begin at the left edge and fit on a narrow screen.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = json.loads(results.read_text())
    rows = sorted(found["seeds_per_s"], key=lambda row: row["median"])
    height = 0.75 + 0.52 * len(rows)
    figure, axis = pyplot.subplots(figsize=(INCHES, height), dpi=200, layout="constrained")
    widest = max(row["most"] for row in rows)
    for position, row in enumerate(rows):
        ours = row["contestant"] == OURS
        spread = [[row["median"] - row["least"]], [row["most"] - row["median"]]]
        axis.barh(
            position,
            row["median"],
            xerr=spread,
            capsize=2.5,
            height=0.42,
            color="tab:orange" if ours else "tab:gray",
        )
        axis.text(
            0,
            position + 0.27,
            row["contestant"],
            fontsize=10,
            va="bottom",
            weight="bold" if ours else "normal",
        )
        # beside a short bar there is room for its figure, in a long one within
        within = row["median"] > widest / 2
        axis.text(
            (row["least"] if within else row["most"]) + (-0.02 if within else 0.02) * widest,
            position,
            f"{row['median']:,}",
            fontsize=10,
            va="center",
            ha="right" if within else "left",
            weight="bold" if ours else "normal",
        )
    axis.set_xlim(0, 1.02 * widest)
    axis.set_ylim(-0.45, len(rows) - 0.3)
    axis.set_axis_off()
    axis.set_title("Seeds/s, one sampling worker", fontsize=11, loc="left", weight="bold")
    busy = found.get("others_cpu", 0.0) > QUIET
    note = "; other processes ran: not to be quoted" if busy else ""
    figure.supxlabel(f"{found['machine']}; {found['date']}{note}", fontsize=7)
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target)
    pyplot.close(figure)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
