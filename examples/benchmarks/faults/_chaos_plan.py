"""What is drawn of a seed: the case of each job, its epochs, and what is done to it when."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from _chaos_cases import CASES, Case

WORKER_FAULTS = {"kill-worker": 3, "stop-worker": 2, "kill-supervisor": 3, "stop-supervisor": 1}
SERVER_FAULTS = {"kill-server": 2, "end-server": 1, "stop-server": 2}
TRAINER_FAULTS = {"kill-trainer": 1, "stop-trainer": 1}
CUT = {"cut-link": 6}
"""How often each is drawn, in relation to the others."""
FAULTS = tuple({**WORKER_FAULTS, **SERVER_FAULTS, **TRAINER_FAULTS, **CUT})
ALONE = -1
"""In place of a job's number: an undisturbed one."""
_LONG_STOP_S = 14.0  # beyond the 10 s after which a server that is silent counts as lost


@dataclass(frozen=True)
class Fault:
    """Something that is done to a job once it has come so far."""

    kind: str
    epoch: int
    share: float
    """Of the epoch's batches; below 0: seconds after a loader begins to be made, then or later."""
    victim: float
    """Which of those that there are, as a share of their number."""
    seconds: float
    """How long what is stopped stands still, a link is cut, a server is away."""


@dataclass(frozen=True)
class Plan:
    """A job."""

    number: int
    case: str
    worlds: tuple[int, ...]
    """Ranks of each life of the job: a trainer that is killed ends one; then from the first on."""
    epochs: tuple[dict[str, Any], ...]
    faults: tuple[Fault, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return it for a log."""
        return asdict(self)


def kinds_of(case: Case, *, workers: bool = True) -> dict[str, int]:
    """Return which faults a case may have, and how often."""
    collective = case.how.get("exchange") == "collective"
    found = dict(TRAINER_FAULTS)
    if workers and not collective:
        found |= WORKER_FAULTS
    if case.servers and not case.stranger:
        found |= SERVER_FAULTS
    if case.machines:
        found |= CUT
    return found


def undisturbed(case: str, epochs: int) -> Plan:
    """Return the plan of a job that nothing happens to, in the case's simplest deployment."""
    quiet = {"workers": 1, "then": "go on", "break_at": 0.0, "workers_then": 1}
    return Plan(ALONE, case, (1,), (quiet,) * epochs, ())


def draw(
    seed: int, number: int, cases: Sequence[str], kinds: Sequence[str], epochs: int, rate: float
) -> Plan:
    """Return job ``number`` of a run: the same for the same arguments.

    Args:
        seed: Of the run.
        number: Of the job.
        cases: To draw one of.
        kinds: Of the faults that may happen.
        epochs: Of the job.
        rate: Faults in an epoch, on average.
    """
    lot = random.Random(f"{seed} {number}")
    # every case comes before one comes again, in an order of its own for each round
    turn, place = divmod(number, len(cases))
    name = random.Random(f"{seed} {turn}").sample(list(cases), len(cases))[place]
    case = CASES[name]
    worlds = tuple(lot.choice(case.worlds) for _ in range(8))
    plans = tuple(_epoch(lot, case) for _ in range(epochs))
    weights = {kind: n for kind, n in kinds_of(case).items() if kind in kinds}
    faults = []
    for _ in range(round(lot.uniform(0.7, 1.3) * rate * epochs) if weights else 0):
        (kind,) = lot.choices(list(weights), list(weights.values()))
        faults.append(_fault(lot, kind, epochs))
    faults.sort(key=lambda fault: (fault.epoch, fault.share))
    return Plan(number, name, worlds, plans, tuple(faults))


def _epoch(lot: random.Random, case: Case) -> dict[str, Any]:
    (then,) = lot.choices(["go on", "again", "resume", "rebuild"], [6, 1, 1, 1])
    return {
        "workers": lot.choice(case.workers),
        "then": then,
        "break_at": lot.uniform(0.1, 0.9),
        "workers_then": lot.choice(case.workers),
    }


def _fault(lot: random.Random, kind: str, epochs: int) -> Fault:
    share, epoch = lot.uniform(0.0, 0.95), lot.randrange(epochs)
    if lot.random() < 0.15:
        share, epoch = -lot.random(), lot.choice([0, epoch])  # the first loader is sure to be made
    seconds = lot.uniform(0.2, 3.0)
    if kind == "cut-link":
        seconds = lot.uniform(1.0, 8.0)
    elif kind == "stop-server" and lot.random() < 0.2:
        seconds = _LONG_STOP_S
    return Fault(kind, epoch, share, lot.random(), seconds)
