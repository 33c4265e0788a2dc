"""What the programmes of `make gpu` share: each says what it finds at once, one line a finding.

A line is ``FOUND`` and ``[name, value]`` as JSON. The exit status is 1 if something failed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from _sizes import FOUND


class Programme:
    """One run of a programme: its options, and what it says.

    Args:
        about: The first line of its help.
    """

    def __init__(self, about: str | None) -> None:
        parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
        best = "cuda:0" if torch.cuda.is_available() else "cpu"
        parser.add_argument("--device", default=best)
        parser.add_argument("--seconds", type=float, default=600.0, help="to be done by then")
        parser.add_argument("--part", help="this part alone")
        args = parser.parse_args()
        self.device, self.part = args.device, args.part
        self.on_cuda = self.device.startswith("cuda")
        self.failed = False
        self._ends = time.monotonic() + args.seconds

    @property
    def left(self) -> float:
        """Seconds left."""
        return self._ends - time.monotonic()

    @property
    def kernels(self) -> list[Any]:
        """Kinds of kernels that are installed."""
        return ["torch", *(["warp"] if find_spec("warp") else [])]

    def found(self, name: str, value: object) -> None:
        """Say a finding."""
        print(FOUND + json.dumps([name, value], default=str), flush=True)

    def attempt(self, name: str, job: Callable[..., object], *args: Any) -> None:
        """Say what ``job`` returns, or that it failed; the programme goes on."""
        if self.left < 5:
            self.found(name, "not started: time was up")
            self.failed = True
            return
        begun = time.perf_counter()
        try:
            value = job(*args)
        except Exception as error:
            traceback.print_exc()
            value, self.failed = f"FAILED: {type(error).__name__}: {str(error)[:400]}", True
        self.found(name, [value, f"{time.perf_counter() - begun:.2f} s"])

    def alone(self, script: str, part: str) -> object:
        """Return how a part of ``script`` ends in a process of its own, which may crash or hang."""
        words = [sys.executable, script, "--device", self.device, "--part", part]
        done = subprocess.run(words, capture_output=True, text=True, timeout=max(1.0, self.left))
        print(done.stdout, done.stderr, sep="\n", flush=True)
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["nothing said"]
            raise RuntimeError(f"ended with {done.returncode}: {said[-1]}")
        return "good"

    def wait(self) -> None:
        """Wait for the device."""
        if self.on_cuda:
            torch.cuda.synchronize()

    def timed(self, job: Callable[[], object], count: int = 15) -> float:
        """Return the median milliseconds of a job, with what the device does for it."""
        times = []
        for _ in range(count + 3):
            self.wait()
            begun = time.perf_counter()
            job()
            self.wait()
            times.append(1e3 * (time.perf_counter() - begun))
        return statistics.median(times[3:])
