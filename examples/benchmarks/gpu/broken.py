"""What breaks in the first minute on a GPU: broken captures, streams, pinning, default devices.

Each part is a process of its own: one that crashes or hangs is named, and the others go on.
"""

import gc
import mmap
import threading
from collections.abc import Callable

import torch
from _findings import Programme, wait
from smoke import batches

from gigl_loader.batch.device.device_memory import DeviceMemory
from gigl_loader.runtime.memory.pinned import CudaHostRegistry, PinMemoryError, PinnedRange


def _dropout(run: Programme) -> None:
    torch.nn.functional.dropout(torch.ones(64, device=run.device), 0.5).sum().item()


def _captured(run: Programme, job: Callable[[], object]) -> None:
    """Capture and replay a job; on the CPU, which captures nothing, run it."""
    memory = DeviceMemory(torch.device(run.device))
    if not memory.can_capture:
        job()
        return
    with memory.in_use():
        memory.captured(job, 0)[1]()
    wait(run.device)


def _break_a_capture(run: Programme) -> None:
    if not run.on_cuda:
        return
    try:
        _captured(run, torch.cuda.synchronize)
    except RuntimeError:
        return
    raise AssertionError("to wait for the device broke no capture off")


def dropout(run: Programme) -> None:
    """Behind a broken capture, dropout draws, and the next capture works."""
    values = torch.ones(64, device=run.device)
    _dropout(run)
    _break_a_capture(run)
    for _ in range(2):
        _dropout(run)
        _captured(run, lambda: values * 2)


def pinned(run: Programme) -> None:
    """Behind broken captures whose graphs are gone, memory can be pinned."""
    for _ in range(3):
        _break_a_capture(run)
    gc.collect()
    for _ in range(100):
        host = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=run.on_cuda)
        host.to(run.device, non_blocking=True)
    wait(run.device)


def streams(run: Programme) -> None:
    """A capture swallows no launch of another thread, on any stream that is given out."""
    memories = [DeviceMemory(torch.device(run.device)) for _ in range(40)]
    values = [torch.zeros(64, device=run.device) for _ in memories]
    wait(run.device)

    def launch() -> None:
        for memory, value in zip(memories, values, strict=True):
            with memory.in_use():
                value.add_(1)

    def job() -> None:
        other = threading.Thread(target=launch)
        other.start()
        other.join(60)

    _captured(run, job)
    lost = sum(value.sum().item() != 64 for value in values)
    assert not lost, f"launches of {lost} of {len(values)} streams were lost"


def last_error(run: Programme) -> None:
    """A refused pinning is not blamed on the next launch."""
    memory = mmap.mmap(-1, 1 << 20)
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    registry = CudaHostRegistry(torch.device(run.device)) if run.on_cuda else None
    first = PinnedRange(address, 1 << 20, registry=registry)
    try:
        PinnedRange(address, 1 << 20, registry=registry)
    except PinMemoryError:
        torch.full((64,), 1.0, device=run.device).mul_(2).sum().item()
    else:
        assert registry is None, "pinned twice"
    first.release()


def default_device(run: Programme) -> None:
    """A default device of the user's script changes no batch."""
    for way, kernels in (("workers", None), ("on the device", "torch")):
        known = batches(way, "cpu")
        for default in ("meta", run.device):
            found = batches(way, run.device, kernels, default)
            torch.set_default_device(None)
            assert found == known, f"{way}, with the default device {default}"


PARTS = {job.__name__: job for job in (dropout, pinned, streams, last_error, default_device)}


def main() -> int:
    """Try each part; return the exit status."""
    run = Programme(__doc__)
    if run.part:
        PARTS[run.part](run)
        return 0
    for name in PARTS:
        run.attempt(name.replace("_", " "), run.alone, __file__, name)
    return int(run.failed)


if __name__ == "__main__":
    raise SystemExit(main())
