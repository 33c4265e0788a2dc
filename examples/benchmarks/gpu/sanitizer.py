"""compute-sanitizer over a few batches: accesses out of bounds, and races."""

import shutil
import subprocess
import sys
from pathlib import Path

from _findings import Programme

SMOKE = Path(__file__).with_name("smoke.py")


def _checked(run: Programme, tool: str, check: str) -> str:
    words = [tool, "--tool", check, "--error-exitcode", "9", sys.executable, str(SMOKE)]
    words += ["--device", run.device, "--part", "bits"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=max(1.0, run.left))
    print(done.stdout[-9000:], done.stderr[-3000:], flush=True)
    if done.returncode:
        raise RuntimeError((done.stdout.strip().splitlines() or ["nothing said"])[-1])
    return "no error"


def main() -> int:
    """Run both checks; return the exit status."""
    run = Programme(__doc__)
    beside = Path("/usr/local").glob("cuda*/bin/compute-sanitizer")
    tool = shutil.which("compute-sanitizer") or next(map(str, beside), None)
    if tool is None or not run.on_cuda:
        run.found("not run", "there is no GPU" if tool else "compute-sanitizer is not installed")
        return 0
    for check in ("memcheck", "racecheck"):
        run.attempt(check, _checked, run, tool, check)
    return int(run.failed)


if __name__ == "__main__":
    raise SystemExit(main())
