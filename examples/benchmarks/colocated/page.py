"""Write the figures of a run, as `bench.py --summary` kept them, into the benchmark's page.

python examples/benchmarks/colocated/page.py RESULTS README

RESULTS is the file of ``--summary``; README has the two marks below.
"""

import json
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BEGIN = "<!-- throughput: page.py writes this part -->"
END = "<!-- end of throughput -->"


def figures(found: Mapping[str, Any], file: str) -> str:
    """Return the Markdown of ``found``, the summary in ``file``: where it ran, table, versions."""
    about = f"{found['date']}, {found['machine']}; {found['work']}."
    about += " Figures are the median of the rounds (least to most)."
    if "others_cpu" in found:
        about += f" Other processes took at most {found['others_cpu']:.1%} of the CPUs."
    versions = [f"- {row['contestant']}: {row['versions']}" for row in found["seeds_per_s"]]
    parts = [textwrap.fill(about, 120), "\n".join(found["table"]), "\n".join(versions)]
    if "command" in found:
        parts.append(
            f"`results/{file}` has each figure. They come from\n\n```\n{found['command']}\n```"
        )
    return "\n\n".join(parts)


def write(results: Path, page: Path) -> None:
    """Replace the part of ``page`` between the two marks.

    Raises:
        ValueError: ``page`` lacks a mark.
    """
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page} needs the lines {BEGIN!r} and {END!r}")
    text = figures(json.loads(results.read_text()), results.name)
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
