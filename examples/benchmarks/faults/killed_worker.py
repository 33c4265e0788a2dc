"""Record a training loop whose sampling worker is killed, and draw it as an animated terminal.

    python examples/benchmarks/faults/killed_worker.py RECORD.json PICTURE.svg
    python examples/benchmarks/faults/killed_worker.py --draw-only RECORD.json PICTURE.svg

The loop waits a while in each step, so that one can read along. The same epoch has been sampled
without a loss before, and all its batches are compared.
"""

import argparse
import datetime
import json
import logging
import os
import signal
import textwrap
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

COLUMNS = 58
"""Characters in a line: few, as the picture is looked at on phones, too."""
STEPS, BATCH_SIZE, KILL_AT, SHOWN_EACH = 36, 64, 13, 3
PACE_S = 0.45


class Line(NamedTuple):
    """A line of a terminal."""

    at: float
    """Seconds after the command was entered."""
    kind: str
    """What it is: a word of `COLORS`."""
    text: str


def record() -> dict[str, Any]:
    """Train for an epoch, kill a worker in it, and return what was seen and when."""
    import torch
    from _cluster import workers_below
    from torch_geometric.data import Data
    from torch_geometric.nn import GraphSAGE

    from gigl_loader import DistDataset, DistNeighborLoader
    from gigl_loader.testing import batch_digest

    generator = torch.Generator().manual_seed(0)
    nodes = 20_000
    label = torch.randint(4, (nodes,), generator=generator)
    edges = torch.randint(nodes, (2, 10 * nodes), generator=generator)
    features = torch.nn.functional.one_hot(label).float()
    noise = torch.randn(features.shape, generator=generator)
    dataset = DistDataset.from_pyg(Data(x=features + noise, y=label, edge_index=edges))
    how: dict[str, Any] = {
        "num_neighbors": [10, 5],
        "batch_size": BATCH_SIZE,
        "seed": 0,
        "shuffle": True,
    }
    seeds = torch.arange(STEPS * BATCH_SIZE)

    with DistNeighborLoader(dataset, input_nodes=seeds, num_workers=1, **how) as loader:
        undisturbed = [batch_digest(batch) for batch in loader]

    lines: list[Line] = []
    began = time.monotonic()

    def note(kind: str, text: str) -> None:
        lines.append(Line(round(time.monotonic() - began, 2), kind, text))
        print(f"{lines[-1].at:6.2f} {text}", flush=True)

    class Notes(logging.Handler):
        def emit(self, told: logging.LogRecord) -> None:
            note("warning", told.getMessage())

    handler = Notes(logging.WARNING)
    logging.getLogger("gigl_loader").addHandler(handler)
    torch.manual_seed(0)
    model = GraphSAGE(4, 32, num_layers=2, out_channels=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    digests, count = [], 0
    # room for few batches: otherwise workers have sampled all of so short an epoch by then
    how["channel_size"] = "1MB"
    with DistNeighborLoader(dataset, input_nodes=seeds, num_workers=2, **how) as loader:
        batches = iter(loader)
        began = time.monotonic()
        note("command", "python train.py")
        for step, batch in enumerate(batches):
            digests.append(batch_digest(batch))
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count += batch.batch_size
            if step % SHOWN_EACH == SHOWN_EACH - 1:
                note("loop", f"batch {step + 1:2}/{STEPS}  loss {loss:.3f}  {count:5,} seeds")
            if step == KILL_AT:
                pid = workers_below(os.getpid())[0]
                os.kill(pid, signal.SIGKILL)
                note("kill", f"kill -9 {pid}")
            time.sleep(PACE_S)
        restarts = loader.stats()["restarts"]
    logging.getLogger("gigl_loader").removeHandler(handler)
    note("loop", f"the epoch is whole: {len(digests)} batches, {count:,} seeds")
    same = digests == undisturbed
    if not same or not restarts:
        raise SystemExit(f"same batches: {same}; workers replaced: {restarts}")
    note("loop", f"workers replaced: {restarts}; the same batches as without a loss")
    return {"date": datetime.date.today().isoformat(), "lines": [line._asdict() for line in lines]}


# --- the picture ----------------------------------------------------------------------------------

COLORS = {"command": "#9cdcfe", "loop": "#d4d4d4", "warning": "#e5c07b", "kill": "#ff6b6b"}
WIDTH, ROW, LEFT = 480, 19, 12
REST_S = 4.0
"""How long the end is shown before it begins again."""


def rows(lines: list[Line]) -> Iterator[Line]:
    """Yield lines as they fit in, each with its prompt."""
    for at, kind, text in lines:
        prompt = "$ " if kind in ("command", "kill") else ""
        for part in textwrap.wrap(prompt + text, COLUMNS):
            yield Line(at, kind, part)


def draw(found: dict[str, Any]) -> str:
    """Return an SVG: the loop's terminal above, and that of the one who kills a worker below.

    Each line appears when it did. Where nothing moves, all are seen.
    """
    lines = list(rows([Line(**line) for line in found["lines"]]))
    loop = [line for line in lines if line.kind != "kill"]
    other = [line for line in lines if line.kind == "kill"]
    length = max(line.at for line in lines) + REST_S
    split = 34 + ROW * len(loop) + 10
    height = split + 24 + ROW * len(other) + 10
    styles: list[str] = []
    drawn: list[str] = []
    for title, top, shown in (("training", 0, loop), ("another terminal", split, other)):
        drawn.append(f'<text x="{LEFT}" y="{top + 18}" fill="#8b8b8b">{title}</text>')
        for number, line in enumerate(shown):
            name = f"l{len(styles)}"
            appears = 100 * line.at / length
            styles.append(
                f"@keyframes {name}{{0%,{appears:.2f}%{{opacity:0}}"
                f"{min(appears + 0.2, 100):.2f}%,100%{{opacity:1}}}}"
                f"#{name}{{animation:{name} {length:.1f}s infinite}}"
            )
            drawn.append(
                f'<text id="{name}" x="{LEFT}" y="{top + 40 + ROW * number}" '
                f'fill="{COLORS[line.kind]}">{escape(line.text)}</text>'
            )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'role="img" xml:space="preserve">',
            "<title>A sampling worker is killed, and the training loop goes on</title>",
            "<style>text{font:13px ui-monospace,Menlo,Consolas,monospace;white-space:pre}",
            "@media (prefers-reduced-motion:no-preference){",
            *styles,
            "}</style>",
            f'<rect width="{WIDTH}" height="{height}" rx="6" fill="#1e1e1e"/>',
            f'<path d="M0 {split}H{WIDTH}" stroke="#555"/>',
            *drawn,
            "</svg>\n",
        ]
    )


def main() -> None:
    """Record unless told not to, and draw."""
    parser = argparse.ArgumentParser(description="A killed worker beside the loop that goes on")
    parser.add_argument("record", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--draw-only", action="store_true", help="what was recorded before")
    args = parser.parse_args()
    if not args.draw_only:
        args.record.write_text(json.dumps(record(), indent=1) + "\n")
    args.picture.write_text(draw(json.loads(args.record.read_text())))


if __name__ == "__main__":
    main()
