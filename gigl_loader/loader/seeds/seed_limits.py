"""Limits on the times of neighbours that a user gives seed by seed, as columns of the seeds."""

from dataclasses import dataclass
from typing import Any, TypeVar

from gigl_loader.batch.message import SeedColumns, columns_of
from gigl_loader.errors import ConfigError
from gigl_loader.loader.seeds.seed_input import TimeInput, add_times, add_times_by_server
from gigl_loader.sampler.options import ExpansionOptions

I = TypeVar("I", bound=Any)  # noqa: E741


def _said(name: str, value: Any) -> tuple[str, Any] | None:
    return None if value is None else (name, value)


@dataclass(frozen=True)
class SeedLimits:
    """The columns of a loader's seeds that limit the times in their trees."""

    given: SeedColumns
    """For each: the user's keyword for it, and its value."""

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
        given = SeedColumns(
            time=_said(name, time) or _said("input_end_time", end),
            start=_said("input_start_time", start),
            window=_said("time_window", window),
            input_id=_said("input_id", row),
        )
        by_seed = given.start or given.window
        if how.time_attr is None and (first := given.time or by_seed):
            raise ConfigError(
                f"{first[0]} was given without time_attr, which says whose times it bounds"
            )
        if how.by_time and by_seed:
            raise ConfigError(
                'disjoint="by_time" gives the seeds of one time one tree, and a window by seed '
                "gives each its own: use disjoint=True, or one time_window for all"
            )
        return cls(given)

    def added_to(self, inputs: I) -> I:
        """Return a sampler's input, or the list of those of all storage servers, with the columns.

        Raises:
            ConfigError: Not one number for each seed, or a window that is negative; names the seed.
        """
        is_remote = isinstance(inputs, list)
        add: Any = add_times_by_server if is_remote else add_times
        for column, (word, given) in self.given.named().items():
            add(inputs, given, word, column)
        for number, sampler_input in enumerate(inputs if is_remote else [inputs]):
            self._check(sampler_input, f" of server {number}" if is_remote else "")
        return inputs

    def _check(self, sampler_input: Any, where: str) -> None:
        columns = SeedColumns.of(columns_of(sampler_input))
        window, start, end = columns.window, columns.start, columns.time
        if window is not None and (wrong := (window < 0).nonzero()).numel():
            seed = int(wrong[0])
            raise ConfigError(
                f"time_window[{seed}]{where} is {window[seed].item()}: an age must be >= 0"
            )
        if start is not None and end is not None and (wrong := (start > end).nonzero()).numel():
            seed = int(wrong[0])
            raise ConfigError(
                f"seed {seed}{where} has input_start_time {start[seed].item()} after its "
                f"{self.given.time[0]} {end[seed].item()}: no neighbour can lie between them"
            )
