"""Pack what a GPU machine without a network lacks into .gpu_pack, to travel with the checkout.

There `make gpu` unpacks it, or without make ``.ci/with-torch "" examples/benchmarks/gpu/bench.py``.

The packages are those of `WANTED`, in the versions of the tests, for the Python of the machine
(``--python``). Warp is too large as it is. Left out is its compiler for CPUs, and device code of
its own for other GPUs than ``sm_90`` is set to zero. The rest has to compile our programs to the
same bytes as the whole library.
"""

import argparse
import hashlib
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACK = ROOT / ".gpu_pack"
WANTED = ("warp-lang", "msgspec", "greenlet")
"""What a machine with torch, numba, PyG and pytest lacks."""
LEFT_OUT = ("warp/tests", "warp/examples", "warp/bin/warp-clang.so")
PACKING = ("--threads=2", "--block-size=192MiB", "--x86", "--lzma2=preset=6,dict=192MiB")
"""Options of xz: two streams, each by a thread; one would be smaller, and slower."""
MOST_BYTES = 54 << 20
"""Of the pack: with the checkout, 64 MiB travel."""
COMPILE = """
import sys, warp as wp
from gigl_loader.sampler.gpu import warp_programs
for ptx in (False, True):
    wp.compile_aot_module(warp_programs, device=None, arch=90, module_dir=sys.argv[1], use_ptx=ptx)
"""
_FAT, _FOR_H100 = 0xBA55ED50, (2, 90)
"""First word of a container of device code; kind (machine code) and architecture of what stays."""


def bring(site: Path, version: str) -> None:
    """Unpack the wheels into ``site``, from where pip is configured to have them."""
    glibcs = ("_2_28", "_2_27", "_2_24", "_2_17", "2014")
    words = [word for one in glibcs for word in ("--platform", f"manylinux{one}_x86_64")]
    words += ["--no-deps", "--no-compile", "--only-binary=:all:", "--python-version", version]
    words += ["-c", str(ROOT / ".ci/constraints.txt"), "--target", str(site), *WANTED]
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *words], check=True)
    for name in LEFT_OUT:
        path = site / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


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
    """Return digests of our programs, compiled by the Warp in ``site``."""
    path = os.pathsep.join([str(site), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", COMPILE, folder], env=env, check=True)
        made = [path for path in Path(folder).iterdir() if path.suffix in (".cubin", ".ptx")]
        return {path.suffix: hashlib.sha256(path.read_bytes()).hexdigest() for path in made}


def shrink(site: Path) -> int:
    """Set to zero what Warp's library needs not for our programs; return the bytes.

    Raises:
        SystemExit: It compiles them to other bytes then.
    """
    library = site / "warp/bin/warp.so"
    whole, data = compiled(site), bytearray(library.read_bytes())
    zeroed = zero_device_code(data) + zero_tables(data)
    library.write_bytes(data)
    if not whole or compiled(site) != whole:
        raise SystemExit("what is left of Warp does not compile our programs to the same bytes")
    return zeroed


def pack(version: str) -> None:
    """Make the pack.

    Raises:
        SystemExit: It is too large.
    """
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder, "site")
        bring(site, version)
        zeroed = shrink(site)
        tar = shutil.make_archive(f"{folder}/python{version}", "tar", site)
        subprocess.run(["xz", *PACKING, tar], check=True)
        packed = Path(f"{tar}.xz")
        size = packed.stat().st_size
        if size > MOST_BYTES:
            raise SystemExit(f"the pack has {size / 2**20:.1f} MiB, which is too large")
        PACK.mkdir(exist_ok=True)
        shutil.move(packed, PACK / packed.name)
    print(
        f"{PACK / packed.name}: {size / 2**20:.1f} MiB; of Warp {zeroed / 2**20:.0f} MiB are zero"
    )


def main() -> None:
    """Pack for the Python of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default="3.12", help="version on the machine")
    pack(parser.parse_args().python)


if __name__ == "__main__":
    main()
