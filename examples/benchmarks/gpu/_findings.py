"""What the programmes of `make gpu` share: each says what it finds at once, one line a finding.

A line is ``FOUND`` and ``[name, value]`` as JSON. The exit status is 1 if something failed.
"""

import argparse
import json
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
from _sizes import FOUND
from torch.utils.benchmark import Timer


class Programme:
    """One run of a programme: its options, and what it says.

    Args:
        about: The first line of its help.
    """

    def __init__(self, about: str | None) -> None:
        parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
        parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
        parser.add_argument("--seconds", type=float, default=600.0, help="to be done by then")
        parser.add_argument("--part", default="", help="this part alone")
        args = parser.parse_args()
        self.device, self.part = args.device, args.part
        self.on_cuda = self.device.startswith("cuda")
        self.failed = False
        self._ends = time.monotonic() + args.seconds

    @property
    def left(self) -> float:
        """Seconds left."""
        return self._ends - time.monotonic()

    def found(self, name: str, value: object) -> None:
        """Say a finding."""
        print(FOUND + json.dumps([name, value], default=str), flush=True)

    def attempt(self, name: str, job: Callable[..., object], *args: Any) -> None:
        """Say what ``job`` returns, or that it failed; the programme goes on."""
        begun = time.perf_counter()
        try:
            if self.left < 5:
                raise TimeoutError("not started: time was up")
            value = job(*args)
        except Exception as error:
            traceback.print_exc()
            value, self.failed = f"FAILED: {type(error).__name__}: {str(error)[:400]}", True
        self.found(name, [value, f"{time.perf_counter() - begun:.2f} s"])

    def alone(self, script: str, part: str, *before: str) -> object:
        """Return how a part of ``script`` ends in a process of its own, which may crash or hang.

        Args:
            script: Its file.
            part: What it gets as ``--part``.
            before: What runs Python, with its options.
        """
        done = subprocess.run(
            [*before, sys.executable, script, "--device", self.device, "--part", part],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=max(1.0, self.left),
        )
        print(textwrap.indent(done.stdout, "  "), flush=True)
        if done.returncode:
            said = done.stdout.strip().splitlines() or ["nothing said"]
            raise RuntimeError(f"ended with {done.returncode}: {said[-1]}")
        return "good"

    def timed(self, job: Callable[[], object], count: int = 15) -> float:
        """Return the mean milliseconds of a job, with what the device does for it."""
        return 1e3 * Timer("job()", globals={"job": job}).timeit(count).mean


def wait(device: str) -> None:
    """Wait for a device."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
