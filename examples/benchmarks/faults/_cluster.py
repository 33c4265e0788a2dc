"""A graph, storage servers and training processes for the scripts in this folder."""

import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

from gigl_loader import partition_graph
from gigl_loader.runtime.transport import free_port
from gigl_loader.testing import wait_until

HOST = "127.0.0.1"
TRAINER = Path(__file__).with_name("_train.py")
AWAY_S = 600.0
"""How long a server may be away: its start on a machine whose cores are all busy."""
_ERROR = re.compile(r"(\[rank\d+\]: )?[\w.]+(Error|Interrupt)\b")


def write_graph(root: Path, num_nodes: int, num_partitions: int, num_features: int = 16) -> None:
    """Write a random graph, ten edges a node."""
    generator = torch.Generator().manual_seed(1)
    edges = torch.randint(num_nodes, (2, 10 * num_nodes), generator=generator)
    features = torch.rand(num_nodes, num_features, generator=generator)
    partition_graph(Data(x=features, edge_index=edges), num_partitions, root)


def here(machine: int, command: list[str]) -> list[str]:
    """Return the command that runs ``command`` on ``machine``; all are this one."""
    return command


class Store:
    """Storage servers as processes of their own; any may be killed, and is started again.

    Args:
        root: The partitions. The servers' logs go beside it.
        hosts: The address of each server.
        on: Makes the command that runs another one on a server's machine.
        options: Further ones of `gigl-loader serve`, for each server.
        log: Where the servers write to; None: beside ``root``.
    """

    def __init__(
        self,
        root: Path,
        hosts: list[str],
        on: Callable[[int, list[str]], list[str]] = here,
        options: list[list[str]] | None = None,
        log: Path | None = None,
    ) -> None:
        self.port, self._hosts, self._on, self._root = free_port(), hosts, on, root
        self._options = options or [[]] * len(hosts)
        self.log = log or root.parent / "servers.log"
        self._log = self.log.open("w")
        self._log_from = [0] * len(hosts)
        self.processes = [self._start(rank) for rank in range(len(hosts))]

    @property
    def address(self) -> str:
        """Where server 0 listens."""
        return f"{self._hosts[0]}:{self.port}"

    def _start(self, rank: int) -> "subprocess.Popen[bytes]":
        command = [
            sys.executable,
            "-m",
            "gigl_loader",
            "serve",
            "--root",
            str(self._root),
            "--num-servers",
            str(len(self._hosts)),
            "--master-addr",
            self._hosts[0],
            "--master-port",
            str(self.port),
            "--host",
            self._hosts[rank],
            "--num-jobs",
            "0",
            "--reconnect-timeout",
            str(AWAY_S),
            "--rank",
            str(rank),
            *self._options[rank],
        ]
        self._log_from[rank] = self.log.stat().st_size
        return subprocess.Popen(self._on(rank, command), stdout=self._log, stderr=self._log)

    def all_serve(self) -> bool:
        """Whether each server has said, since its last start, that it serves."""
        text = self.log.read_bytes()
        return all(
            f"storage server {rank} of {len(self._hosts)} serves".encode() in text[start:]
            for rank, start in enumerate(self._log_from)
        )

    def restart(self, rank: int, how: signal.Signals) -> None:
        """End a server, and start it again at once."""
        self.processes[rank].send_signal(how)
        self.processes[rank].wait(60)
        self.processes[rank] = self._start(rank)

    def worker_pids(self, rank: int) -> list[int]:
        """Return the sampling workers of a server."""
        return workers_below(self.processes[rank].pid)

    def close(self) -> None:
        """End all."""
        end(self.processes)
        self._log.close()


def workers_below(pid: int) -> list[int]:
    """Return the sampling workers of a process: children of its children, the supervisors."""
    return [worker for supervisor in children_of(pid) for worker in children_of(supervisor)]


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started: of one with workers, the supervisors."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, file.read_text().split())
    return found


def end(processes: "list[subprocess.Popen[bytes]]") -> None:
    """Kill, and wait."""
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


class Job:
    """Training processes, and what they took.

    Args:
        folder: Made; keeps notes and logs.
        on: As for `Store`; rank ``r`` runs on machine ``r``.
        trainer: The script of a rank.
        options: For the script, but for rank, world, folder and port.
    """

    def __init__(
        self,
        folder: Path,
        world: int,
        on: Callable[[int, list[str]], list[str]] = here,
        trainer: Path = TRAINER,
        **options: Any,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._trainer = trainer
        self.folder, self._on, self._options = folder, on, options
        self.processes: list[subprocess.Popen[bytes]] = []
        self._before: set[str] = set()
        self.start(world)

    def start(self, world: int) -> None:
        """Start the ranks; they go on where the job was."""
        port, self._before = free_port(), {file.name for file in self._files()}
        self.processes = [self._start(rank, world, port) for rank in range(world)]

    def _start(self, rank: int, world: int, port: int) -> "subprocess.Popen[bytes]":
        given = {**self._options, "folder": self.folder, "rank": rank, "world": world}
        words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        words = [word.removesuffix("=True") for word in words] + [f"--group-port={port}"]
        command = [sys.executable, str(self._trainer), *words]
        with (self.folder / f"rank{rank}.log").open("ab") as log:
            return subprocess.Popen(self._on(rank, command), stdout=log, stderr=log)

    def _files(self) -> list[Path]:
        return list(self.folder.glob("*.jsonl"))

    def has_begun(self) -> bool:
        """Return whether each rank has taken a batch since `start`."""
        own = [file for file in self._files() if file.name not in self._before]
        return len([file for file in own if file.stat().st_size]) == len(self.processes)

    def notes(self) -> list[dict[str, Any]]:
        """Return a line of each batch that was taken, by time."""
        found = []
        for file in self._files():
            whole = [line for line in file.read_text().splitlines(True) if line.endswith("\n")]
            found += [json.loads(line) for line in whole]
        return sorted(found, key=lambda line: float(line["at"]))

    def wait_for(self, batches: int, limit_s: float = 400.0) -> None:
        """Wait until this many batches were taken, over all ranks."""
        wait_until(lambda: self.is_over() or len(self.notes()) >= batches, "batches", limit_s)
        if self.is_over():
            raise RuntimeError(f"the job ended early: {self.error()}")

    def is_over(self) -> bool:
        """Return whether a rank has ended."""
        return any(process.poll() is not None for process in self.processes)

    def join(self, limit_s: float = 600.0) -> bool:
        """Wait for the end; return whether all ranks ended well. One that fails ends the others."""
        wait_until(
            lambda: all(p.poll() is not None for p in self.processes) or self._failed(),
            "the job ends",
            limit_s,
        )
        good = not self._failed()
        end(self.processes)
        return good

    def kill(self) -> None:
        """End all ranks at once."""
        end(self.processes)

    def _failed(self) -> bool:
        return any(process.poll() for process in self.processes)

    def error(self) -> str:
        """Return how each rank ended, and the last line of its log that names an error."""
        found = []
        for rank, process in enumerate(self.processes):
            text = (self.folder / f"rank{rank}.log").read_text()
            lines = [one for one in text.splitlines() if _ERROR.match(one)]
            found.append(f"rank {rank} ended with {process.poll()}: {''.join(lines[-1:])}")
        return "; ".join(found)

    def digest(self) -> str:
        """Return the sha256 over the batches in the order of the job's sequence.

        Raises:
            AssertionError: One position was taken twice with other bits.
        """
        found: dict[tuple[int, int], str] = {}
        for line in self.notes():
            position = (line["epoch"], line["position"])
            assert found.setdefault(position, line["digest"]) == line["digest"], position
        text = "".join(f"{position} {digest}\n" for position, digest in sorted(found.items()))
        return hashlib.sha256(text.encode()).hexdigest()

    def longest_pause(self) -> float:
        """Return the longest time between two batches of one rank, in seconds."""
        longest = 0.0
        last: dict[int, float] = {}
        for line in self.notes():
            longest = max(longest, line["at"] - last.get(line["rank"], line["at"]))
            last[line["rank"]] = line["at"]
        return float(longest)


def machine_name() -> str:
    """Return what the results were taken on."""
    model = [one for one in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in one]
    name = model[0].partition(":")[2].strip() if model else socket.gethostname()
    return f"{os.cpu_count()} cores, {name}, torch {torch.__version__}"
