"""compute-sanitizer over a few batches: accesses out of bounds, and races."""

import shutil
from pathlib import Path

from _findings import Programme

SMOKE = Path(__file__).with_name("smoke.py")


def main() -> int:
    """Run both checks; return the exit status."""
    run = Programme(__doc__)
    beside = Path("/usr/local").glob("cuda*/bin/compute-sanitizer")
    tool = shutil.which("compute-sanitizer") or next(map(str, beside), None)
    if tool is None or not run.on_cuda:
        run.found("not run", "there is no GPU" if tool else "compute-sanitizer is not installed")
        return 0
    for check in ("memcheck", "racecheck"):
        how = (tool, "--tool", check, "--error-exitcode", "9")
        run.attempt(check, run.alone, str(SMOKE), "bits", *how)
    return int(run.failed)


if __name__ == "__main__":
    raise SystemExit(main())
