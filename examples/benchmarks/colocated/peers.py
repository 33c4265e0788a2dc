"""Build the peers' environments, and say which could not be built.

Example::

    python examples/benchmarks/colocated/peers.py ../peers --pyg-lib ../pyg-lib

Each is a folder of its own. One that is there already is left as it is. See README.md.
"""

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

# as gigl_loader has it: PyG in the same torch
_TORCH = f"torch=={importlib.metadata.version('torch').partition('+')[0]}"
_PYG = (_TORCH, "torch_geometric", "wheel", "setuptools")
_FROM_SOURCE = "--no-build-isolation"  # built against the torch that is there
ENVIRONMENTS: dict[str, tuple[str, list[tuple[str, ...]]]] = {
    "glt": (
        "run_glt",  # which does without torch_sparse and a GPU, as `import graphlearn_torch` cannot
        [("torch==2.6.0", "graphlearn-torch==0.2.4", "torch_geometric", "numba", "setuptools")],
    ),
    "graphbolt": (
        "dgl.graphbolt",
        [
            (
                *("torch==2.2.1", "torchdata==0.7.1", "dgl==2.1.0", "numpy<2", "setuptools<80"),
                *("pydantic", "pyyaml", "pandas", "scipy", "networkx", "requests", "tqdm"),
                "psutil",
            )
        ],
    ),
    "pyg": ("torch_sparse", [_PYG, (_FROM_SOURCE, "torch-scatter", "torch-sparse")]),
    "pyglib": ("pyg_lib", [(*_PYG, "ninja"), (_FROM_SOURCE, "{pyg_lib}")]),
}
"""By folder: the module to import at last, and the arguments of each ``pip install``."""


def build(folder: Path, name: str, pyg_lib: Path | None) -> str:
    """Build one environment; return why it is not there, or ``""``."""
    module, installs = ENVIRONMENTS[name]
    python = folder / name / "bin" / "python"
    if python.exists():
        return ""
    if name == "pyglib" and pyg_lib is None:
        return "give --pyg-lib, a clone with its submodules"
    half_done = folder / f".{name}"
    shutil.rmtree(half_done, ignore_errors=True)
    venv.create(half_done, with_pip=True)
    for packages in installs:
        wanted = [package.format(pyg_lib=pyg_lib) for package in packages]
        if problem := _failed(half_done, ["-m", "pip", "install", "--quiet", *wanted]):
            return problem
    if problem := _failed(half_done, ["-c", f"import torch, {module}"]):
        return problem
    half_done.rename(folder / name)
    return ""


def _failed(environment: Path, arguments: Sequence[str]) -> str:
    """Run an environment's Python; return the last line of its errors if it failed."""
    # CMake asks the first Python that it finds how torch was built
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    how = {"PATH": path, "VIRTUAL_ENV": str(environment), "FORCE_ONLY_CPU": "1", "FORCE_CUDA": "0"}
    done = subprocess.run(
        [str(environment / "bin" / "python"), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **how},
        cwd=Path(__file__).parent,  # whose scripts can be imported
        check=False,
    )
    lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
    return lines[-1] if done.returncode else ""


def main(argv: Sequence[str] | None = None) -> int:
    """Build what can be built; 1 if some could not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=ENVIRONMENTS, default=list(ENVIRONMENTS))
    parser.add_argument("--pyg-lib", type=Path, help="a clone of pyg-lib with its submodules")
    args = parser.parse_args(argv)
    args.folder.mkdir(parents=True, exist_ok=True)
    folder, source = args.folder.resolve(), args.pyg_lib and args.pyg_lib.resolve()
    problems: dict[str, str] = {}
    for name in args.only:
        print(f"{name}: building", file=sys.stderr, flush=True)
        if problem := build(folder, name, source):
            problems[name] = problem
        print(f"{name}: {problem or 'there'}", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
