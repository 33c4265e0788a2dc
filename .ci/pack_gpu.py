"""Pack what a GPU machine without a network lacks, and run `make gpu` there.

    python .ci/pack_gpu.py pack               here: makes .gpu_pack, to travel with the checkout
    python .ci/pack_gpu.py run --minutes 8    there: unpacks it, and runs the benchmark's bench.py

The packages are those of `WANTED`, in the versions of the tests, for the Python of the machine
(``--python``). Warp is too large as it is. Left out are its compiler for CPUs, and device code of
its own for other GPUs than ``sm_90`` is set to zero. The rest has to compile our programs to the
same bytes as the whole library, or less is set to zero.
"""

import argparse
import hashlib
import io
import lzma
import os
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACK = ROOT / ".gpu_pack"
WANTED = ("warp-lang", "msgspec", "greenlet")
"""What a machine with torch, numba, PyG and pytest lacks."""
LEFT_OUT = ("warp/tests/", "warp/examples/", "warp/bin/warp-clang.so")
MOST_BYTES = 55 << 20
"""Of the pack: more does not travel."""
COMPILE = """
import sys, warp as wp
from gigl_loader.sampler.gpu import warp_programs
for ptx in (False, True):
    wp.compile_aot_module(warp_programs, device=None, arch=90, module_dir=sys.argv[1], use_ptx=ptx)
"""
_FAT, _FOR_H100 = 0xBA55ED50, (2, 90)
"""First word of a container of device code; kind (machine code) and architecture of what stays."""


def fetch(folder: Path, version: str) -> None:
    """Download the wheels, from where pip is configured to."""
    glibcs = ("_2_28", "_2_27", "_2_24", "_2_17", "2014")
    platforms = [word for one in glibcs for word in ("--platform", f"manylinux{one}_x86_64")]
    words = ["--no-deps", "--only-binary=:all:", "--python-version", version, *platforms]
    words += ["-c", str(ROOT / ".ci/constraints.txt"), "-d", str(folder), *WANTED]
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", *words], check=True)


def section(data: bytes | bytearray, wanted: bytes) -> tuple[int, int]:
    """Return offset and size of a section of a shared library."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    width, count, names = struct.unpack_from("<HHH", data, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", data, table + width * at) for at in range(count)]
    for name, *_, offset, size in heads:
        begin = heads[names][4] + name
        if data[begin : data.index(b"\0", begin)] == wanted:
            return offset, size
    raise ValueError(f"there is no section {wanted.decode()}")


def zero_device_code(data: bytearray) -> int:
    """Set device code for other GPUs to zero, not its heads, which are read; return its bytes."""
    at, size = section(data, b".nv_fatbin")
    last, zeroed = at + size, 0
    while at < last:
        if struct.unpack_from("<I", data, at)[0] != _FAT:
            at += 8
            continue
        head, length = struct.unpack_from("<HQ", data, at + 6)
        at, end = at + head, at + head + length
        while at < end:
            kind, _, head, length = struct.unpack_from("<HHIQ", data, at)
            if (kind, *struct.unpack_from("<I", data, at + 28)) != _FOR_H100:
                data[at + head : at + head + length] = bytes(length)
                zeroed += length
            at += head + length
    return zeroed


def zero_tables(data: bytearray) -> int:
    """Set a MiB and more in ``.data`` that no packing makes smaller to zero; return the bytes."""
    begin, size = section(data, b".data")
    step, zeroed, run = 1 << 16, 0, 0
    for at in range(begin, begin + size, step):
        block = data[at : min(at + step, begin + size)]
        if len(block) == step and len(zlib.compress(block, 1)) > 0.985 * step:
            run += step
            continue
        if run >= 1 << 20:
            data[at - run : at] = bytes(run)
            zeroed += run
        run = 0
    return zeroed


def compiled(site: Path) -> dict[str, str]:
    """Return digests of our programs, compiled by the Warp in ``site``; {}: it does not work."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-c", COMPILE, folder]
        if subprocess.run(words, env=env, stdout=subprocess.DEVNULL).returncode:
            return {}
        made = [path for path in Path(folder).iterdir() if path.suffix in (".cubin", ".ptx")]
        return {path.suffix: hashlib.sha256(path.read_bytes()).hexdigest() for path in made}


def shrink(library: Path, compiles: Callable[[], dict[str, str]]) -> int:
    """Set to zero what a library needs not for our programs; return the bytes."""
    whole, original = compiles(), library.read_bytes()
    if not whole:
        raise SystemExit("Warp compiles nothing here: pack where torch and the package are")
    for steps in ((zero_device_code, zero_tables), (zero_device_code,)):
        data = bytearray(original)
        zeroed = sum(step(data) for step in steps)
        library.write_bytes(data)
        if compiles() == whole:
            return zeroed
    library.write_bytes(original)
    return 0


def compressed(data: bytes) -> bytes:
    """Return data as .xz, in two streams, each by a thread: one would be smaller, and slower."""
    filters = [
        {"id": lzma.FILTER_X86},
        {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 192 << 20},
    ]
    half = len(data) // 2
    with ThreadPoolExecutor(2) as pool:
        parts = pool.map(
            lambda part: lzma.compress(part, filters=filters), (data[:half], data[half:])
        )
        return b"".join(parts)


def pack(version: str) -> None:
    """Make the pack.

    Raises:
        SystemExit: It is too large, or cannot be tried here.
    """
    with tempfile.TemporaryDirectory() as folder:
        wheels, site = Path(folder, "wheels"), Path(folder, "site")
        fetch(wheels, version)
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if not name.startswith(LEFT_OUT)]
                archive.extractall(site, names)
        zeroed = shrink(site / "warp/bin/warp.so", lambda: compiled(site))
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w") as tar:
            for path in sorted(site.rglob("*"), key=lambda path: path.suffix):
                if path.is_file() and "__pycache__" not in path.parts:
                    tar.add(path, path.relative_to(site))
    packed = compressed(raw.getvalue())
    if len(packed) > MOST_BYTES:
        raise SystemExit(f"the pack has {len(packed) / 2**20:.1f} MiB, which is too large")
    PACK.mkdir(exist_ok=True)
    (PACK / "packages.tar.xz").write_bytes(packed)
    print(f"{PACK.name}: {len(packed) / 2**20:.1f} MiB; of Warp {zeroed / 2**20:.0f} MiB are zero")


def run(words: list[str]) -> None:
    """Unpack what travelled, beside it, and go on as the benchmark."""
    site = PACK / "site"
    if not site.exists():
        unpacking = PACK / f"unpacking.{os.getpid()}"
        with tarfile.open(PACK / "packages.tar.xz") as tar:
            tar.extractall(unpacking, filter="data")
        unpacking.rename(site)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    caches = {"NUMBA_CACHE_DIR": str(PACK / "numba"), "WARP_CACHE_PATH": str(PACK / "warp")}
    script = str(ROOT / "examples/benchmarks/gpu/bench.py")
    os.execve(
        sys.executable,
        [sys.executable, script, *words],
        {**os.environ, **caches, "PYTHONPATH": path},
    )


def main() -> None:
    """Pack, or run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("job", choices=["pack", "run"])
    parser.add_argument("--python", default="3.12", help="version on the machine")
    args, rest = parser.parse_known_args()
    if args.job == "run":
        run(rest)
    elif rest:
        parser.error(f"pack takes no {' '.join(rest)}")
    else:
        pack(args.python)


if __name__ == "__main__":
    main()
