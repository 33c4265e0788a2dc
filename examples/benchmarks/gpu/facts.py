"""What the machine is: versions, memory, and what it copies, gathers and launches at most."""

import importlib.metadata
import platform
import shutil
import subprocess
from contextlib import suppress

import torch
from _findings import Programme
from _sizes import FROM_PINNED, GATHERED

QUERY = "name,memory.total,driver_version,pcie.link.gen.current,pcie.link.width.current,power.limit"
SAID = {
    "GPU": f"timeout 20 nvidia-smi --query-gpu={QUERY} --format=csv,noheader",
    "CPU": "getconf _NPROCESSORS_ONLN; grep -m1 'model name' /proc/cpuinfo",
    "memory": "grep -E 'MemTotal|MemAvail' /proc/meminfo; df -h /dev/shm | tail -1",
}
PACKAGES = "torch torch-geometric pyg-lib numpy numba triton warp-lang msgspec pytest hypothesis"
TOOLS = "nvcc ncu compute-sanitizer gcc make"


def _versions() -> dict[str, str]:
    versions = {"Python": platform.python_version(), "CUDA of torch": str(torch.version.cuda)}
    for name in PACKAGES.split():
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _say_speeds(run: Programme) -> None:
    size, device = 1 << (28 if run.on_cuda else 22), run.device
    pinned = torch.zeros(size, dtype=torch.uint8, pin_memory=run.on_cuda)
    plain = torch.zeros(size, dtype=torch.uint8)
    here, other = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    rows = here.view(torch.float32).view(-1, 128)
    at, one = torch.randint(rows.size(0), (rows.size(0),), device=device), other[:1]
    jobs = {
        FROM_PINNED: (1, lambda: here.copy_(pinned, non_blocking=True)),
        "GB/s from other memory": (1, lambda: here.copy_(plain)),
        "GB/s to pinned memory": (1, lambda: pinned.copy_(here, non_blocking=True)),
        "GB/s of a copy there, both ways": (2, lambda: other.copy_(here)),
        GATHERED: (2, lambda: rows.index_select(0, at)),
    }
    for name, (ways, job) in jobs.items():
        run.found(name, round(ways * size / run.timed(job) / 1e6, 2))
    run.found("us a launch", round(run.timed(lambda: [one.add_(1) for _ in range(1000)], 5), 2))


def main() -> int:
    """Say all of it; return the exit status."""
    run = Programme(__doc__)
    run.found("versions", _versions())
    run.found("tools", {name: bool(shutil.which(name)) for name in TOOLS.split()})
    for name, words in SAID.items():
        run.found(name, subprocess.getoutput(words))
    if run.on_cuda:
        run.found("device", str(torch.cuda.get_device_properties(run.device)))
        handles = {torch.cuda.Stream(priority=-1).cuda_stream for _ in range(40)}
        run.found("distinct of 40 streams", len(handles))
    _say_speeds(run)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
