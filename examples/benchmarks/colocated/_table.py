"""Medians, spread and ratios, as Markdown."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Bar:
    """What the ratio of the reference to a contestant has to reach."""

    at_least: float


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Return ``median (min to max)``."""
    numbers = (statistics.median(values), min(values), max(values))
    median, low, high = (f"{number:,.{digits}f}" for number in numbers)
    return f"{median} ({low} to {high})"


def ratios(reference: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """Return ``reference / other`` of each round that both ran: drift of the machine cancels."""
    return [reference[r] / other[r] for r in sorted(reference.keys() & other.keys())]


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; the first column is text, the others are numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def verdict(values: Sequence[float], bar: Bar | None) -> str:
    """Return the bar and whether the median reaches it."""
    if bar is None:
        return ""
    if not values:
        return f"{bar.at_least:g}: not measured"
    median = statistics.median(values)
    return f"{bar.at_least:g}: {'met' if median >= bar.at_least else 'MISSED'}"
