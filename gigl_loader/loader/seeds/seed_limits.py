"""Limits on the times of neighbours that a user gives seed by seed, as columns of the seeds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from gigl_loader.batch.message import INPUT_ID, SEED_START, SEED_TIME, SEED_WINDOW
from gigl_loader.errors import ConfigError
from gigl_loader.loader.seeds.seed_input import TimeInput, add_times, add_times_by_server
from gigl_loader.sampler.options import ExpansionOptions

I = TypeVar("I", bound=Any)  # noqa: E741


@dataclass(frozen=True)
class SeedLimits:
    """The columns of a loader's seeds that limit the times in their trees."""

    given: dict[str, tuple[str, TimeInput]]
    """By column: the user's keyword for it, and its value."""

    @classmethod
    def of(
        cls, options: Any, time: TimeInput | None, name: str = "input_time", row: Any = None
    ) -> "SeedLimits":
        """Return the limits that a loader was given.

        Args:
            options: The loader's `LoaderOptions`.
            time: The times of seeds.
            name: The keyword of ``time``.
            row: Numbers of the seeds, which become ``input_id``; None: their positions.

        Raises:
            ConfigError: Two of them say the same limit, or nothing is sampled by time.
        """
        how: ExpansionOptions = options.expansion
        start, end, window = options.input_start_time, options.input_end_time, options.time_window
        if time is not None and end is not None:
            raise ConfigError(
                f"{name} and input_end_time are both the latest time of a seed's neighbours, which "
                "is also the seed's own time: give one of them"
            )
        if start is not None and not (window is None and how.time_window is None):
            raise ConfigError(
                "input_start_time and time_window both say how early neighbours may be: give one "
                "of them"
            )
        columns = {
            SEED_TIME: (name, time) if end is None else ("input_end_time", end),
            SEED_START: ("input_start_time", start),
            SEED_WINDOW: ("time_window", window),
        }
        given = {column: (word, of) for column, (word, of) in columns.items() if of is not None}
        if given and how.time_attr is None:
            word = next(iter(given.values()))[0]
            raise ConfigError(
                f"{word} was given without time_attr, which says whose times it bounds"
            )
        if how.by_time and given.keys() & {SEED_START, SEED_WINDOW}:
            raise ConfigError(
                'disjoint="by_time" gives the seeds of one time one tree, and a window by seed '
                "gives each its own: use disjoint=True, or one time_window for all"
            )
        return cls(given if row is None else {**given, INPUT_ID: ("input_id", row)})

    def added_to(self, inputs: I) -> I:
        """Return a sampler's input, or the list of those of all storage servers, with the columns.

        Raises:
            ConfigError: Not one number for each seed, or a window that is negative; names the seed.
        """
        is_remote = isinstance(inputs, list)
        add: Any = add_times_by_server if is_remote else add_times
        for column, (word, given) in self.given.items():
            inputs = add(inputs, given, word, column)
        for number, sampler_input in enumerate(inputs if is_remote else [inputs]):
            self._check(sampler_input, f" of server {number}" if is_remote else "")
        return inputs

    def _check(self, sampler_input: Any, where: str) -> None:
        columns: Mapping[str, Tensor] = getattr(sampler_input, "extra", None) or {}
        window, start, end = (columns.get(name) for name in (SEED_WINDOW, SEED_START, SEED_TIME))
        if window is not None and (wrong := (window < 0).nonzero()).numel():
            seed = int(wrong[0])
            raise ConfigError(
                f"time_window[{seed}]{where} is {window[seed].item()}: an age must be >= 0"
            )
        if start is not None and end is not None and (wrong := (start > end).nonzero()).numel():
            seed = int(wrong[0])
            raise ConfigError(
                f"seed {seed}{where} has input_start_time {start[seed].item()} after its "
                f"{self.given[SEED_TIME][0]} {end[seed].item()}: no neighbour can lie between them"
            )
