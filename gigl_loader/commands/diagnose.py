"""``gigl-loader diagnose``: resources of this machine for a loader, and a short trial.

Prints versions, whether graphlearn-torch's native library is loaded, the limits on shared memory
and files, and the network; then samples a small graph with real workers. Look first at lines with
``!!``; the exit status is 0 if there is none.
"""

import argparse
import errno
import importlib.metadata
import os
import platform
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

# nothing that needs torch: if that cannot be imported, versions are printed before
import gigl_loader
from gigl_loader.errors import ConfigError, UsageError, without_default_types
from gigl_loader.runtime.command_line import verb_parser
from gigl_loader.runtime.memory import segments
from gigl_loader.runtime.ranks.gloo_interface import VARIABLE, interface_needed
from gigl_loader.runtime.system import Footprint, meminfo, memory_limit, number_in, usable_cpus
from gigl_loader.runtime.transport import own_address, sockets

_GIB = 2**30
_PACKAGES = (
    "gigl_loader",
    "torch",
    "torch_geometric",
    "graphlearn-torch",
    "numba",
    "numpy",
    "typing_extensions",
)
# not worth a "!!": no loader needs it
_OPTIONAL = ("graphlearn-torch",)
_FEW_FILES = 1024
"""Fewer open files than this are soon used up: a batch from another process holds one."""
# The kernel's default. A partition read in place, a segment and a pinned block take a mapping each,
# and so are libraries and thread stacks.
_FEW_MAPS = 65530
_LITTLE_MEMORY = _GIB // 2


class Finding(NamedTuple):
    """One line of the report."""

    name: str
    text: str
    bad: bool = False

    def __str__(self) -> str:
        return f"{'!!' if self.bad else '  '} {self.name:<18} {self.text}"


# --- installed packages ---------------------------------------------------------------------------


def versions() -> Iterator[Finding]:
    """Report the system, the interpreter and the packages."""
    yield Finding("system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    yield Finding("python", platform.python_version(), bad=sys.version_info < (3, 11))
    for package in _PACKAGES:
        try:
            yield Finding(package, importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(package, "not installed", bad=package not in _OPTIONAL)
    yield Finding("GPUs", _gpus())
    yield _device_kernels()


def _gpus() -> str:
    import torch

    if not torch.cuda.is_available():
        built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
        return f"none found (torch is built for {built}); batches stay on the CPU"
    gpus = []
    for number in range(torch.cuda.device_count()):
        free, whole = torch.cuda.mem_get_info(number)
        name = torch.cuda.get_device_name(number)
        gpus.append(f"{name} ({free / 1e9:.1f} of {whole / 1e9:.1f} GB free)")
    return f"{len(gpus)}: {', '.join(gpus)}"


def _device_kernels() -> Finding:
    """Report the kernels for sampling on a GPU."""
    name = "kernels for GPUs"
    try:
        version = importlib.metadata.version("warp-lang")
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, "torch's operators; pip install 'gigl_loader[gpu]' for compiled ones")
    import torch

    from gigl_loader.sampler.gpu.kernel_choice import reason_against_warp

    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        reason, _ = reason_against_warp(torch.device("cuda", number))
        if reason is not None:
            return Finding(name, f"torch's operators: {reason}", bad=True)
    return Finding(name, f"Warp {version}")


def glt_door() -> Iterator[Finding]:
    """Report whether graphlearn-torch can be imported, and its native library loaded."""
    from gigl_loader.runtime import glt_classes

    if not glt_classes.available:
        text = "not installed, and no loader needs it: gigl_loader's own classes take its place"
        yield Finding("Python layer", text)
        return
    # all names: another version of GLT may import but lack some
    missing = [name for name in glt_classes.EXPORTS if not _has(glt_classes, name)]
    state = f"lacks {missing}" if missing else f"imported, {len(glt_classes.EXPORTS)} names found"
    yield Finding("Python layer", state, bad=bool(missing))
    if glt_classes.native_available:
        yield Finding("native library", "loaded")
    else:
        yield Finding(
            "native library", f"not loaded, and no loader needs it: {glt_classes.native_reason}"
        )


def _has(module: object, name: str) -> bool:
    try:
        getattr(module, name)
    except UsageError:
        return False
    return True


# --- limits of the machine ------------------------------------------------------------------------


def memory() -> Iterator[Finding]:
    """Report memory, and the limits on sharing it."""
    yield Finding("CPUs", f"{usable_cpus()} usable of {os.cpu_count()}")
    available = meminfo("MemAvailable")
    yield Finding("memory", f"{_size(available)} available", bad=available < _LITTLE_MEMORY)
    limited = memory_limit()
    if limited is not None:
        # in a container or a job of Slurm, pages of shared memory count for the control group that
        # touched them first
        limit, used = limited
        text = f"{_size(limit)}, {_size(used)} in use; shared memory counts"
        yield Finding("limit on memory", text, bad=limit - used < _LITTLE_MEMORY)
    yield _memfd()
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{files} (ulimit -n), can be raised to {most}"
    yield Finding("open files", text, bad=files < _FEW_FILES)
    # None: hidden by the kernel or a sandbox
    maps = number_in("/proc/sys/vm/max_map_count")
    if maps is not None:
        yield Finding("memory maps", f"{maps} (vm.max_map_count)", bad=maps < _FEW_MAPS)
    try:
        shm = os.statvfs("/dev/shm")
        text = f"{_size(shm.f_bavail * shm.f_frsize)} free; loaders do not use it"
        yield Finding("/dev/shm", text)
    except OSError:
        yield Finding("/dev/shm", "not there; loaders do not use it")


def _memfd() -> Finding:
    # reserved like a loader's segments: too small a limit shows here, not later in a loader
    nbytes = 64 * 2**20
    try:
        os.close(segments.create_memfd(nbytes))
    except OSError as error:
        return Finding("shared memory", str(error), bad=True)
    return Finding("shared memory", f"memfd_create works, {_size(nbytes)} reserved for a trial")


def _size(nbytes: int) -> str:
    return f"{nbytes / _GIB:.1f} GiB" if nbytes >= _GIB else f"{nbytes / 2**20:.1f} MiB"


# --- connections to other processes ---------------------------------------------------------------


def network() -> Iterator[Finding]:
    """Report addresses and ports."""
    try:
        address = own_address()
    except ConfigError as error:
        yield Finding("own address", str(error), bad=True)
        # the rest of the section is still useful
        address = "127.0.0.1"
    else:
        yield Finding("own address", f"{address} (as other ranks see it)")
    # in this order, and once if they are equal
    for host in dict.fromkeys((address, "127.0.0.1")):
        yield _connects(host)
    yield _master()
    yield _gloo()
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except (OSError, ValueError):
        return
    yield Finding("free ports", f"are taken from {low} to {high}; open them between machines")


def _connects(host: str) -> Finding:
    """Report whether a process of this machine can listen at ``host`` and be reached there."""
    try:
        sockets.try_to_listen(host, timeout_s=5)
    except OSError as error:
        return Finding("connect", f"to {host}: {error}; is a firewall in the way?", bad=True)
    return Finding("connect", f"to {host}: a port can be opened and reached")


def _gloo() -> Finding:
    """Report whether gloo would make other machines connect to themselves."""
    host = sockets.own_name()[0]
    if VARIABLE in os.environ:
        return Finding("gloo", f"listens on {os.environ[VARIABLE]} ({VARIABLE})")
    name = interface_needed(os.environ.get("MASTER_ADDR", "127.0.0.1"))
    if name is None:
        return Finding("gloo", f"listens where the name of this host, {host!r}, leads")
    return Finding(
        "gloo",
        f"the name of this host, {host!r}, leads to a loopback address: other machines would "
        f"connect to themselves; export {VARIABLE}={name}",
        bad=True,
    )


def _master() -> Finding:
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if host is None or port is None:
        return Finding("master", "MASTER_ADDR and MASTER_PORT are not set (torchrun sets them)")
    # torchrun sets both; a custom script may set anything
    if not port.isdigit():
        return Finding("master", f"MASTER_PORT={port!r} is no number", bad=True)
    try:
        sockets.try_to_connect(host, int(port), timeout_s=5)
    except OSError as error:
        # expected before the job runs: the machine responds, but no process listens
        if error.errno == errno.ECONNREFUSED:
            return Finding("master", f"{host}:{port}: nothing listens there yet")
        return Finding("master", f"{host}:{port}: {error}", bad=True)
    return Finding("master", f"{host}:{port} answers")


# --- a graph on disk ------------------------------------------------------------------------------


def graph(root: str | Path) -> Iterator[Finding]:
    """Report the partitions below ``root``, and features that are no numbers."""
    part, parts = 0, 1
    while part < parts:
        try:
            dataset = _open_part(root, part)
        except ConfigError as error:
            yield Finding(f"partition {part}", str(error), bad=True)
            return
        parts = dataset.num_partitions
        yield Finding(f"partition {part}", repr(dataset))
        for name, (count, total) in dataset.count_nan_features().items():
            if count:
                text = without_default_types(f"{count} of {total} features of {name!r}")
                yield Finding("features", f"{text} of partition {part} are NaN", bad=True)
        part += 1


def _open_part(root: str | Path, part: int) -> "gigl_loader.DistDataset":
    try:
        return gigl_loader.DistDataset.load(root, part, mmap=True, verify="off")
    except ConfigError:  # GLT's format cannot be mapped; anything else is wrong again
        return gigl_loader.DistDataset.load(root, part, verify="off")


# --- a trial --------------------------------------------------------------------------------------


def self_test(seconds: float = 10.0, num_workers: int = 2) -> Iterator[Finding]:
    """Sample a small graph with real workers for ``seconds``, and check the batches.

    Args:
        seconds: Duration; at least one epoch is finished.
        num_workers: Sampling processes.
    """
    import torch

    # before anything starts: existing leftovers are not the trial's
    held = Footprint()
    try:
        # the trial draws numbers: a calling script keeps the state of its own generator
        with _own_group(), torch.random.fork_rng(devices=[]):
            yield from _sample(seconds, num_workers, held)
        gigl_loader.release_workers()  # one rests for a next loader
        held.check_gone()
    except Exception as error:
        yield Finding("self-test", f"failed: {type(error).__name__}: {error}", bad=True)
        return
    yield Finding("afterwards", f"{len(held.pids)} processes ended, nothing of theirs is left")


def _kernels() -> Finding:
    """Compile all kernels that this machine does not have, such as while an image is built."""
    from gigl_loader.sampler.kernels.kernel_loaders import LOADERS
    from gigl_loader.sampler.row_cache.cache import RowCache

    began, kinds = time.perf_counter(), (*LOADERS.values(), RowCache.load_kernels)
    for load in kinds:
        load()
    return Finding("kernels", f"{len(kinds)} kinds loaded in {time.perf_counter() - began:.1f} s")


@contextmanager
def _own_group() -> Iterator[None]:
    """Create a single-process group if none exists."""
    import torch.distributed as dist

    if dist.is_initialized():
        yield
        return
    # in memory: without a port or a file shared with other processes
    store, hook = dist.HashStore(), sys.excepthook  # type: ignore[attr-defined]  # torch does not declare it
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook  # torch replaces it by its own, and never restores it


def _sample(seconds: float, num_workers: int, held: Footprint) -> Iterator[Finding]:
    import torch
    from torch_geometric.data import Data

    # an epoch is 40 batches: the trial has several, and ends soon after its time
    num_nodes, num_edges = 20_000, 400_000
    data = Data(
        # a node's features are its id, so that a wrong row is detected
        x=torch.arange(num_nodes, device="cpu").view(-1, 1).expand(-1, 16).float(),
        edge_index=torch.randint(num_nodes, (2, num_edges), device="cpu"),
    )
    began = time.perf_counter()
    with gigl_loader.DistNeighborLoader(
        gigl_loader.DistDataset.from_pyg(data),
        [10, 5],
        num_workers=num_workers,
        batch_size=512,
        shuffle=True,
        timeout=60.0,
    ) as loader:
        yield Finding("workers", f"{num_workers} ready after {time.perf_counter() - began:.1f} s")
        yield _kernels()
        # while the workers run: afterwards nothing is left to inspect
        held.look(os.getpid(), itself=False)
        deadline, epochs = time.monotonic() + seconds, 0
        # whole epochs: only then every seed must have come once
        while epochs == 0 or time.monotonic() < deadline:
            seen = torch.zeros(num_nodes, dtype=torch.int64, device="cpu")
            for batch in loader:
                seen[batch.batch] += 1
                if not torch.equal(batch.x[:, 0].long(), batch.n_id):
                    yield Finding("batches", f"wrong features in epoch {epochs}", bad=True)
                    return
            epochs += 1
            if not bool((seen == 1).all()):
                yield Finding("batches", f"epoch {epochs - 1} missed or repeated seeds", bad=True)
                return
        stats = loader.stats()
        done = stats["batches"]
    yield Finding("batches", f"{done} in {epochs} epochs, each seed once, features right")
    yield Finding("speed", f"{stats['seeds_per_s']:,.0f} seeds/s: {stats['verdict']}")


# --- the report -----------------------------------------------------------------------------------


def report(sections: dict[str, Callable[[], Iterator[Finding]]]) -> bool:
    """Print each section when it is ready; return whether all is well."""
    well = True
    for title, find in sections.items():
        print(f"\n{title}", flush=True)
        # line by line: a section that hangs shows the last line before
        for finding in find():
            well &= not finding.bad
            print(finding, flush=True)
    print("\nall is well" if well else "\nlook at the lines with !!", flush=True)
    return well


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = verb_parser(
        "diagnose",
        "Report what this machine offers to a loader, and try one.",
        "gigl-loader diagnose --seconds 5",
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the trial")
    parser.add_argument(
        "--num-workers", type=int, default=2, help="sampling processes of the trial"
    )
    parser.add_argument("--graph", metavar="DIR", help="partitions to look at, too")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    args = parser().parse_args(arguments)
    sections: dict[str, Callable[[], Iterator[Finding]]] = {
        "versions": versions,
        "graphlearn-torch": glt_door,
        "memory": memory,
        "network": network,
        f"self-test ({args.seconds:g} s)": lambda: self_test(args.seconds, args.num_workers),
    }
    if args.graph is not None:
        sections = {f"graph {args.graph}": lambda: graph(args.graph), **sections}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own
        well = report(sections)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
