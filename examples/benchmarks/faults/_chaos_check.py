"""What came of a job, read from what its ranks wrote down, against the undisturbed run."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Digests = list[list[str]]
"""sha256 of each batch, by epoch and position."""


class Reader:
    """Reads the lines that ranks have added since it last looked."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._read = folder, dict[Path, int]()

    def new_lines(self) -> list[dict[str, Any]]:
        """Return them, those of a rank in its order."""
        found = []
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                lines = file.readlines()
            if lines and not lines[-1].endswith(b"\n"):  # it is being written, or was cut by a kill
                lines.pop()
            self._read[path] = self._read.get(path, 0) + sum(map(len, lines))
            found += [json.loads(line) for line in lines]
        return found


@dataclass
class Found:
    """What came of a job's epochs."""

    whole: int = 0
    short: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    duplicates: list[str] = field(default_factory=list)
    digests: Digests = field(default_factory=list)


def check(lines: list[dict[str, Any]], expected: Digests | None) -> Found:
    """Compare what was taken with the undisturbed run's; None: there is none, this is that run.

    A segment that begins at position ``start`` replaces what was taken from there on: the job was
    broken off, or has lost what came after its last state. Within a segment each batch comes once.
    """
    found, taken = Found(), dict[int, dict[int, str]]()
    totals: dict[int, int] = {}
    ended = {line["epoch"]: tuple(line["segment"]) for line in lines if line["kind"] == "whole"}
    found.short += [line["text"] for line in lines if line.get("short")]
    by_segment: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for line in lines:
        if line["kind"] in ("segment", "batch"):
            life, number = line["segment"]
            by_segment.setdefault((life, number), []).append(line)
    for segment in sorted(by_segment):
        of_segment = by_segment[segment]
        first = next(line for line in of_segment if line["kind"] == "segment")
        epoch, totals[first["epoch"]] = first["epoch"], first["total"]
        kept = {at: one for at, one in taken.get(epoch, {}).items() if at < first["start"]}
        seen = Counter(line["position"] for line in of_segment if line["kind"] == "batch")
        again = [at for at, count in seen.items() if count > 1 or at in kept]
        found.duplicates += [f"epoch {epoch}, segment {segment}: batch {at}" for at in again]
        kept |= {line["position"]: line["digest"] for line in of_segment if "digest" in line}
        taken[epoch] = kept
        if expected is not None:
            found.wrong += [
                f"epoch {epoch}, segment {segment}: batch {at}"
                for at, digest in sorted(kept.items())
                if at in seen and (at >= len(expected[epoch]) or digest != expected[epoch][at])
            ]
    for epoch, segment in sorted(ended.items()):
        if any(segment < other and of[0]["epoch"] == epoch for other, of in by_segment.items()):
            continue  # its end was not saved before a kill, and it was not taken to the end again
        missing = set(range(totals[epoch])) - taken[epoch].keys()
        if missing:
            found.short.append(f"epoch {epoch} ended without batches {sorted(missing)}")
        else:
            found.whole += 1
            found.digests.append([digest for _, digest in sorted(taken[epoch].items())])
    return found
