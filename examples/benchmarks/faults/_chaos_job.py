"""One job of chaos: its processes, what is done to them, and what is left of them."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any

from _chaos_cases import CASES, alone
from _chaos_check import Digests, Found, Reader, check
from _chaos_plan import ALONE, Fault, Plan, undisturbed
from _cluster import HOST, Job, Store, children_of, end, workers_below
from _machines import ADDRESSES, Link, Machines

from gigl_loader.runtime.system import IGNORED
from gigl_loader.runtime.transport.certs import make_folder, token
from gigl_loader.testing import Footprint, open_files, wait_until

TRAINER, START, STRANGER = (
    Path(__file__).with_name(f"_chaos_{name}.py") for name in ("train", "start", "stranger")
)
AWAY_S = 600.0
_LOOK_S = 0.1
_VICTIM_S = 5.0
_LEAVING_S = 90.0
_MOST_LIVES = 40
_CRASH_CHARACTERS = 8000
"""Enough for the frames of a storage server's threads."""
_GROWTH = {"MB": 100, "descriptors": 4, "threads": 2}
"""What a server may have more when a stranger has left: modules, kernels, memory of malloc, and the
connection to the process that forks workers. It does not grow with the number of attacks."""


_OF_A_SERVER = {"JoinRefusedError", "PeerLostError", "PeerTimeoutError", "ServerDiedError"}
"""Errors by which a job says that a server failed it."""


@dataclass
class Outcome:
    """What came of a job."""

    plan: Plan
    found: Found = field(default_factory=Found)
    done: Counter[str] = field(default_factory=Counter)
    """Faults, by kind."""
    errors: Counter[str] = field(default_factory=Counter)
    """Errors of this library, by name."""
    texts: list[str] = field(default_factory=list)
    """What each error said."""
    unnamed: list[str] = field(default_factory=list)
    """Other errors that no fault explains."""
    left: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    """Where the threads of a process were that crashed or was ended as hanging, from its log."""
    attacks: Counter[str] = field(default_factory=Counter)
    """Of a stranger, by name; all ended as they must."""
    silent: Counter[str] = field(default_factory=Counter)
    """Further attacks, which had no end: nothing was heard of the server for too long."""
    server: list[dict[str, int]] = field(default_factory=list)
    """What the server had before the stranger came, and when it had left."""
    hang: str = ""
    seconds: float = 0.0
    load: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether nothing happened that must not."""
        found = self.found
        bad = [found.short, found.wrong, found.duplicates, self.unnamed, self.left]
        return not any(bad) and not self.hang

    def as_dict(self) -> dict[str, Any]:
        """Return it for a log."""
        found = {name: getattr(self.found, name) for name in ("whole", "short", "wrong")}
        return {
            **self.plan.as_dict(),
            **found,
            "duplicates": self.found.duplicates,
            "done": dict(self.done),
            "errors": dict(self.errors),
            "texts": self.texts,
            "unnamed": self.unnamed,
            "left": self.left,
            "crashes": self.crashes,
            "attacks": dict(self.attacks),
            "silent": dict(self.silent),
            "server": self.server,
            "hang": self.hang,
            "seconds": round(self.seconds, 1),
            "load": round(self.load, 1),
        }


class ChaosJob:
    """A job, from its start until nothing of it is left.

    Args:
        plan: What it does, and what is done to it.
        folder: An empty one, for notes and logs.
        root: The partitions.
        expected: Of the undisturbed run; None: this is that run.
        pace: Seconds of a training step.
        silence_s: How long no rank may take a batch before the job counts as hanging.
        stop: Whether the job is to end with the epoch that it is in.
        away_s: ``reconnect_timeout`` of loaders and servers.
        every_s: Kill a server again and again, so many seconds after all serve: least and most.
    """

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        root: Path,
        expected: Digests | None,
        *,
        pace: float,
        silence_s: float,
        stop: Callable[[], bool] = lambda: False,
        away_s: float = AWAY_S,
        every_s: tuple[float, float] | None = None,
    ) -> None:
        self.plan, self.folder, case = plan, folder, CASES[plan.case]
        self.case = alone(case) if plan.number == ALONE else case
        self._root, self._expected, self._pace = root, expected, pace
        self._silence_s, self._stop = silence_s, stop
        self._away_s, self._every_s = away_s, every_s if case.servers else None
        self._lot = random.Random(f"servers of job {plan.number}")
        self._reader, self._lines = Reader(folder), list[dict[str, Any]]()
        self._beside: Job | None = None
        """A second job on the same servers."""
        self._stranger: subprocess.Popen[bytes] | None = None
        self._reader_beside = Reader(folder / "beside")
        self._lines_beside = list[dict[str, Any]]()
        self._faults, self._later = list(plan.faults), list[tuple[float, Callable[[], None]]]()
        self._footprint, self._life = Footprint(), 0
        self._machines: Machines | None = None
        self._store: Store | None = None
        self._was_killed, self._away = False, set[int]()
        self._total, self._gave_up = 1, False
        self._reached, self._built = (-1, 0.0), list[tuple[int, float]]()
        self.outcome = Outcome(plan)

    # --- from start to end -------------------------------------------------------------------

    def run(self) -> Outcome:
        """Run it; leave nothing behind, and say what had to be ended."""
        began = time.monotonic()
        with contextlib.ExitStack() as stack:
            self._start(stack)
            self._watch()
            self._hear(self._reader.new_lines())
            self._lines_beside += self._reader_beside.new_lines()
            self._leave()
        self.outcome.found = check(self._lines, self._expected)
        self._check_all_came()
        self._check_beside()
        self.outcome.seconds, self.outcome.load = time.monotonic() - began, os.getloadavg()[0]
        return self.outcome

    def _check_all_came(self) -> None:
        """Note where a job ended well without all its epochs."""
        found, was_told = self.outcome.found, (self.folder / "stop").exists()
        whole, planned = found.whole, len(self.plan.epochs)
        if whole < planned and not (was_told or found.short or self._gave_up or self.outcome.hang):
            found.short.append(f"the job is over after {whole} epochs of {planned}")

    def _check_beside(self) -> None:
        """Note what the second job saw of the first one's faults."""
        if self._beside is None or self.outcome.hang:
            return
        beside = check(self._lines_beside, self._expected)
        for name in ("short", "wrong", "duplicates"):
            getattr(self.outcome.found, name).extend(
                f"of the job beside it: {text}" for text in getattr(beside, name)
            )
        if code := self._beside.processes[0].returncode:
            self.outcome.unnamed.append(f"the job beside it ended with {code}")
        elif beside.whole < len(self.plan.epochs) and not (self.folder / "stop").exists():
            self.outcome.found.short.append(f"the job beside it has {beside.whole} whole epochs")

    def _start(self, stack: contextlib.ExitStack) -> None:
        case, hosts = self.case, (HOST, HOST)
        self.folder.mkdir(parents=True, exist_ok=True)
        if case.machines:
            self._machines = stack.enter_context(Machines(Link("a cable")))
            hosts = ADDRESSES
        self._environment = dict[str, str]()
        if case.tls:
            folder = make_folder(self.folder / "tls", [HOST, *ADDRESSES])
            self._environment["GIGL_LOADER_TLS_DIR"] = str(folder)
        else:
            self._environment["GIGL_LOADER_CLUSTER_TOKEN"] = token()
        if case.apart:
            self._environment["GIGL_LOADER_SAME_MACHINE"] = "0"
        options: dict[str, Any] = {
            "case": self.plan.case,
            "root": self._root,
            "epochs": len(self.plan.epochs),
            "pace": self._pace,
            "host": hosts[0],
            "alone": self.plan.number == ALONE,
        }
        if case.servers:
            machines = case.machines or (0,) * case.servers
            self._store = Store(
                self._root,
                [hosts[machine] for machine in machines],
                lambda rank, words: self._on(machines[rank], words),
                [["--reconnect-timeout", str(self._away_s)]] * case.servers,
                log=self.folder / "servers.log",
            )
            options |= {"store": self._store.address, "servers": case.servers}
            options["reconnect"] = self._away_s
        self._write_plan()
        on_rank = (0,) * 8 if case.servers else case.machines or (0,) * 8
        options = {name: value for name, value in options.items() if value is not False}
        self._job = Job(
            self.folder,
            self.plan.worlds[0],
            lambda rank, words: self._on(on_rank[rank], words),
            trainer=TRAINER,
            **options,
        )

        if case.beside:
            folder = self.folder / "beside"
            folder.mkdir()
            quiet = undisturbed(self.plan.case, len(self.plan.epochs)).epochs
            (folder / "plan.json").write_text(json.dumps({"life": 0, "epochs": quiet}))
            name = {"GIGL_LOADER_JOB": "beside"}
            self._beside = Job(
                folder, 1, lambda rank, words: self._on(0, words, name), trainer=TRAINER, **options
            )

    def _on(self, machine: int, words: list[str], more: dict[str, str] | None = None) -> list[str]:
        """Return the command that runs another one on a machine, in this job's folder."""
        environment, name = {**self._environment, **(more or {})}, "-"
        if self._machines is not None:
            name = self._machines.name(machine)
            environment = {**environment, "GLOO_SOCKET_IFNAME": name}
        variables = [f"{name}={value}" for name, value in environment.items()]
        python, *rest = words
        return [python, str(START), str(self.folder), name, *variables, "--", *rest]

    def _write_plan(self) -> None:
        plan = {"life": self._life, "epochs": self.plan.epochs}
        (self.folder / "plan.json").write_text(json.dumps(plan))

    def _watch(self) -> None:
        """Do what is due until the job is over, or hangs."""
        heard = time.monotonic()
        while True:
            new = self._reader.new_lines()
            now = time.monotonic()
            if new:
                heard = now
                self._hear(new)
            # once the job is over, only the other one is to be heard
            if (beside := self._reader_beside.new_lines()) and all(
                process.poll() is not None for process in self._job.processes
            ):
                heard = now
            self._lines_beside += beside
            if self._stop():
                (self.folder / "stop").touch()
                if self._beside is not None:
                    (self.folder / "beside" / "stop").touch()
                self._faults.clear()
            self._do_what_is_due(now)
            self._look_after_servers()
            if self._is_over():
                return
            if now - heard > self._silence_s:
                self._end_a_hang()
                return
            time.sleep(_LOOK_S)

    def _hear(self, lines: list[dict[str, Any]]) -> None:
        self._lines += lines
        for line in lines:
            if line["kind"] == "segment":
                self._total = line["total"]
            elif line["kind"] == "batch":
                reached = (line["epoch"], line["position"] / self._total)
                self._reached = max(self._reached, reached)
            elif line["kind"] == "building" and line["rank"] == 0:
                self._built.append((line["epoch"], line["at"]))
                if self.case.stranger and self._stranger is None:
                    self._let_a_stranger_in()
                if self._every_s is not None and len(self._built) == 1:
                    self._kill_later()

    def _is_over(self) -> bool:
        """Whether all ranks have ended well; starts them again where one has not."""
        codes = [process.poll() for process in self._job.processes]
        if any(codes):
            self._go_on()
            self._gave_up = len(self.outcome.unnamed) > 3 or self._life > _MOST_LIVES
            return self._gave_up
        others = [] if self._beside is None else self._beside.processes
        return all(code == 0 for code in codes) and all(p.poll() is not None for p in others)

    def _go_on(self) -> None:
        """End the ranks as torchrun does when it has lost one, and start others."""
        if not self._was_killed:  # ranks that have an error of their own may tell it
            with contextlib.suppress(AssertionError):
                wait_until(lambda: all(p.poll() is not None for p in self._job.processes), "", 3.0)
        self._look()
        end(self._job.processes)
        self._hear(self._reader.new_lines())
        self._count_errors()
        self._was_killed = False
        self._life += 1
        self._write_plan()
        self._job.start(self.plan.worlds[self._life % len(self.plan.worlds)])

    def _count_errors(self) -> None:
        errors = [
            line
            for line in self._lines
            if line["kind"] == "error" and line.get("life", self._life) == self._life
        ]
        for line in errors:
            line["life"] = self._life
        text = [f"life {self._life}, rank {e['rank']}: {e['name']}: {e['text']}" for e in errors]
        self.outcome.texts += text
        named = {line["name"] for line in errors if line["named"]}
        if self._was_killed:  # what ranks say of one that was killed is no news
            return
        self.outcome.errors.update(named)
        if self.case.stranger:  # nothing is done to the server: a stranger may not make it fail
            of_server = [line["name"] in _OF_A_SERVER for line in errors]
            self.outcome.unnamed += [*compress(text, of_server)]
        if not named and not any(line["short"] for line in errors):
            codes = [process.poll() for process in self._job.processes]
            self.outcome.unnamed += text or [f"life {self._life}: ranks ended with {codes}"]

    # --- faults ------------------------------------------------------------------------------

    def _do_what_is_due(self, now: float) -> None:
        due = [one for one in self._later if one[0] <= now]
        self._later = [one for one in self._later if one[0] > now]
        for _, action in due:
            action()
        for fault in [one for one in self._faults if self._is_due(one, now)]:
            self._faults.remove(fault)
            self._inflict(fault, now + _VICTIM_S)

    def _is_due(self, fault: Fault, now: float) -> bool:
        if fault.share >= 0:
            return self._reached >= (fault.epoch, fault.share)
        return any(e >= fault.epoch and now >= at - 2 * fault.share for e, at in self._built)

    def _inflict(self, fault: Fault, until: float) -> None:
        """Do it, or try again until there is a victim."""
        verb, kind = fault.kind.split("-")
        if kind == "link":
            assert self._machines is not None
            self._machines.set_link("down")
            self._in(fault.seconds, lambda: self._machines.set_link("up"))
        else:
            victims = self._victims(kind)
            if not victims:
                if time.monotonic() < until:
                    self._in(0.1, lambda: self._inflict(fault, until))
                return
            victim = victims[int(fault.victim * len(victims))]
            self._look()
            if not self._hit(verb, kind, victim, fault.seconds):
                return
        self.outcome.done[fault.kind] += 1
        note = {"at": time.monotonic(), "kind": fault.kind, "seconds": fault.seconds}
        with (self.folder / "faults.txt").open("a") as file:
            file.write(json.dumps(note | {"reached": self._reached}) + "\n")

    def _kill_later(self) -> None:
        """Kill a server in a while, and then again, wherever the job has come to."""
        if self._every_s is None:
            return
        assert self._store is not None
        # else a machine on which a start takes longer than that would never have all of them
        if not self._store.all_serve():
            self._in(0.5, self._kill_later)
            return
        away_s = self._lot.uniform(0.2, 3.0)
        fault = Fault("kill-server", 0, 0.0, self._lot.random(), away_s)

        def kill() -> None:
            if self._every_s is not None:
                self._inflict(fault, 0.0)
                self._in(away_s + 1.0, self._kill_later)

        self._in(self._lot.uniform(*self._every_s), kill)

    def _hit(self, verb: str, kind: str, pid: int, seconds: float) -> bool:
        """Send the signal; return whether there was somebody to get it."""
        number = {"kill": signal.SIGKILL, "end": signal.SIGTERM, "stop": signal.SIGSTOP}[verb]
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        if verb == "stop":
            self._in(seconds, lambda: _go_on_with(pid))
        elif kind == "server":
            self._away.add(pid)
            self._in(seconds, lambda: self._restart(pid))
        elif kind == "trainer":
            self._was_killed = True
        return True

    def _in(self, seconds: float, action: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + seconds, action))

    def _look_after_servers(self) -> None:
        """Start a server again that has ended though nothing was done to it; say so."""
        for rank, process in enumerate(self._store.processes if self._store else []):
            if process.poll() is not None and process.pid not in self._away:
                self.outcome.unnamed.append(f"server {rank} ended with {process.returncode}")
                self._away.add(process.pid)
                self._in(1.0, partial(self._restart, process.pid))

    def _restart(self, pid: int) -> None:
        assert self._store is not None
        for rank, process in enumerate(self._store.processes):
            if process.pid == pid:
                _go_on_with(pid)  # a stopped one would not hear that it is to end
                self._store.restart(rank, signal.SIGKILL)

    def _victims(self, kind: str) -> list[int]:
        trainers = [one.pid for one in self._job.processes if one.poll() is None]
        servers = [one.pid for one in self._store.processes] if self._store else []
        if kind == "trainer":
            return trainers
        if kind == "server":
            return servers
        below = workers_below if kind == "worker" else children_of
        return [pid for root in servers or trainers for pid in below(root) if not _stands_by(pid)]

    # --- the end -----------------------------------------------------------------------------

    def _look(self) -> None:
        """Remember what the job's processes hold now."""
        own = self._own_pids()
        for pid in own:
            if _parent(pid) not in own:  # the others are below these
                self._footprint.look(pid, itself=True)

    def _own_pids(self) -> list[int]:
        """Return all processes that run in this job's folder: they inherit it."""
        found, folder = [], str(self.folder)
        for path in Path("/proc").glob("[0-9]*/cwd"):
            with contextlib.suppress(OSError):
                if os.readlink(path) == folder:
                    found.append(int(path.parent.name))
        return found

    def _let_a_stranger_in(self) -> None:
        assert self._store is not None
        folder = self.folder / "stranger"
        folder.mkdir()
        self.outcome.server.append(held_by(self._store.processes[0].pid))
        words = [sys.executable, str(STRANGER), self._store.address, "1", str(folder)]
        with (folder / "stranger.log").open("ab") as log:
            self._stranger = subprocess.Popen(self._on(0, words), stdout=log, stderr=log)

    def _see_a_stranger_off(self) -> None:
        """Let it leave; note what it did, and what the server has more than before."""
        if self._stranger is None or self.outcome.hang:
            return
        assert self._store is not None
        (self.folder / "stranger" / "stop").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._stranger.wait(_LEAVING_S)
        if (code := self._stranger.poll()) != 0:
            self.outcome.unnamed.append(f"the stranger ended with {code}")
        end([self._stranger])
        notes = json.loads((self.folder / "stranger" / "attacks.json").read_text())
        self.outcome.attacks.update(notes["done"])
        self.outcome.silent.update(notes["silent"])
        self.outcome.unnamed += notes["wrong"]
        self.outcome.unnamed += [
            f"{name}: the server was silent each time"
            for name in notes["silent"].keys() - notes["done"].keys()
        ]
        pid, until = self._store.processes[0].pid, time.monotonic() + _LEAVING_S
        while grown := growth(self.outcome.server[0], held_by(pid)):
            if time.monotonic() > until:
                files = sorted(open_files(pid))
                self.outcome.left.append(f"the stranger left in the server: {grown}: {files}")
                break
            time.sleep(0.5)
        self.outcome.server.append(held_by(pid))

    def _leave(self) -> None:
        """Let the servers end, and see what is left; end that too."""
        self._end_what_waits()
        self._see_a_stranger_off()
        self._look()
        servers = self._store.processes if self._store else []
        for process in servers:
            process.terminate()
        until = time.monotonic() + _LEAVING_S
        while not self.outcome.hang and (left := self._leftovers()):
            if time.monotonic() > until:
                self.outcome.left = left
                break
            time.sleep(0.5)
        for pid in self._own_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._stranger is not None:
            end([self._stranger])
        end([*self._job.processes, *(self._beside.processes if self._beside else []), *servers])
        if self._store is not None:
            self._store.close()

    def _leftovers(self) -> list[str]:
        for owner in (self._job, self._beside, self._store):
            for process in owner.processes if owner else []:
                process.poll()
        others = [f"process {pid}" for pid in self._own_pids() if pid not in self._footprint.pids]
        return self._footprint.leftovers() + others

    def _end_what_waits(self) -> None:
        self._every_s = None
        for _, action in self._later:
            action()  # what is stopped goes on
        self._later.clear()

    def _end_a_hang(self) -> None:
        """Let all processes write where their threads are into their logs, and end."""
        self._end_what_waits()
        self.outcome.hang = f"no batch for {self._silence_s:g} s at {self._reached}"
        for pid in self._own_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGABRT)
        time.sleep(3.0)  # until the stacks are written


def held_by(pid: int) -> dict[str, int]:
    """Return the megabytes, threads and descriptors of a process, some also by their kind."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    said = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    files = open_files(pid)
    return {
        "MB": int(said["RssAnon"].split()[0]) // 1000,
        "descriptors": len(files),
        "threads": int(said["Threads"]),
        "sockets": sum(name.startswith("socket:") for name in files),
        "segments": sum(name.startswith("/memfd:") for name in files),
    }


def growth(first: dict[str, int], last: dict[str, int]) -> list[str]:
    """Return what a process has more than it may."""
    return [
        f"{first[what]} -> {last[what]} {what}"
        for what, more in _GROWTH.items()
        if last[what] > first[what] + more
    ]


def _stands_by(pid: int) -> bool:
    """Whether a process is there only to start others quickly."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() in IGNORED
    return False


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def _go_on_with(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def crash_in(log: Path) -> str:
    """Return what a log has of the first process that crashed: the kept folder may be lost."""
    text = log.read_text(errors="replace")
    at = text.find("Fatal Python error")
    return "" if at < 0 else f"{log.name}: {text[at : at + _CRASH_CHARACTERS]}"


def run_job(job: ChaosJob, keep: Path) -> Outcome:
    """Run a job; keep the folder of one that is not good."""
    outcome = job.run()
    if outcome.is_good:
        shutil.rmtree(job.folder, ignore_errors=True)
    else:
        outcome.crashes = [*filter(None, map(crash_in, sorted(job.folder.rglob("*.log"))))]
        keep.mkdir(parents=True, exist_ok=True)
        shutil.move(job.folder, keep / f"job{job.plan.number}.{os.getpid()}")
    return outcome
