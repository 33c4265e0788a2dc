"""Build the wheel and the sdist, and try the wheel where nothing else of this checkout is.

    python .ci/release_check.py            all Pythons that are here; the README and ten tasks
    python .ci/release_check.py --quick    the oldest, the README alone, the tests' versions

Files are built from the last commit. The wheel is installed into a fresh environment of each
Python, from where pip is configured to: ``PIP_CONSTRAINT`` or ``PIP_FIND_LINKS`` choose the torch.
At the end it says what only a person can do. Needs the extra `release`.
"""

import argparse
import email
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.support.pages import script  # noqa: E402 (pages run here as in the tests)

TASKS = (
    "docs/quickstart.md",
    "docs/concepts.md",
    "docs/guide/datasets.md",
    "docs/guide/partition_format.md",
    "docs/guide/colocated.md",
    "docs/guide/node_classification.md",
    "docs/guide/link_prediction.md",
    "docs/guide/training_loop.md",
    "docs/guide/same_batches.md",
    "docs/guide/ppr.md",
)
"""Pages that need no extra; each is a task that is done from its first line to its last."""
LARGEST = {".whl": 2_000_000, ".gz": 6_000_000}
"""Bytes that a file may have: more, and something is in it that does not belong there."""
TIMEOUT_S = 900.0
"""For one page. The first in an environment compiles the kernels."""


class Trial(NamedTuple):
    """What came of a page on one Python."""

    python: str
    torch: str
    page: str
    seconds: float
    ok: bool


def build(place: Path) -> list[Path]:
    """Build from what git has, and return wheel and sdist."""
    files = subprocess.Popen(
        ["git", "archive", "HEAD", "--prefix=source/"], cwd=ROOT, stdout=subprocess.PIPE
    )
    subprocess.run(["tar", "-x"], cwd=place, stdin=files.stdout, check=True)
    if files.wait():
        raise SystemExit("git archive failed")
    command = [sys.executable, "-m", "build", "--outdir", str(place / "dist"), "source"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the build failed:\n{done.stdout}{done.stderr}")
    return sorted((place / "dist").iterdir())


def names_in(file: Path) -> list[str]:
    """Return the names of the files in a wheel or sdist."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            return wheel.namelist()
    with tarfile.open(file) as sdist:
        return [one.name for one in sdist if one.isfile()]


def faults_of(file: Path) -> Iterator[str]:
    """Yield what is wrong with a wheel or sdist: its size, what it holds and what it lacks."""
    size, most = file.stat().st_size, LARGEST[file.suffix]
    if size > most:
        yield f"{file.name}: {size:,} bytes, more than {most:,}"
    names = names_in(file)
    # an sdist has all below one folder
    inner = names if file.suffix == ".whl" else [name.partition("/")[2] for name in names]
    wanted = [
        "gigl_loader/__init__.py",
        "gigl_loader/py.typed",
        "gigl_loader/commands/capacity/costs.json",
    ]
    missing = [name for name in wanted if name not in inner]
    if not any(name.rpartition("/")[2] == "LICENSE" for name in inner):
        missing.append("LICENSE")
    if missing:
        yield f"{file.name} lacks {', '.join(missing)}"
    top = {name.partition("/")[0] for name in names}
    if file.suffix == ".whl":
        strange = [name for name in sorted(top) if not re.fullmatch(r"gigl_loader(-.*)?", name)]
        if strange:
            yield f"{file.name} has {', '.join(strange)} beside the package"
    built = [name for name in names if "__pycache__" in name or name.endswith((".pyc", ".nbi"))]
    if built:
        yield f"{file.name} has compiled files: {built[0]}"


def metadata_faults(wheel: Path, project: dict[str, object]) -> Iterator[str]:
    """Yield where the wheel's metadata is not the project's, and what twine finds in it."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [one for one in opened.namelist() if one.endswith(".dist-info/METADATA")]
        found = email.message_from_bytes(opened.read(name))
    for field, key in (("Name", "name"), ("Version", "version"), ("Summary", "description")):
        if found[field] != project[key]:
            yield f"{wheel.name}: {field} is {found[field]!r}, not {project[key]!r}"
    if found["Requires-Python"] != project["requires-python"]:
        yield f"{wheel.name}: Requires-Python is {found['Requires-Python']!r}"
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", str(wheel)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        yield f"twine check --strict: {done.stdout.strip()}"


def try_on(
    python: str, version: str, wheel: Path, pages: Sequence[str], place: Path, versions: list[str]
) -> Iterator[Trial]:
    """Install the wheel alone into a new environment, and run each page there as a script."""
    home = place / version
    subprocess.run([python, "-m", "venv", str(home)], check=True)
    began = time.monotonic()
    subprocess.run(
        [ROOT / ".ci" / "install", home, *versions, wheel], check=True, stdout=subprocess.DEVNULL
    )
    took = time.monotonic() - began
    # not this checkout's modules, and not what this process was started with
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = {**kept, "PATH": f"{home}/bin:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    def run(*words: str, folder: Path = home) -> "subprocess.CompletedProcess[str]":
        try:
            return subprocess.run(
                [home / "bin" / words[0], *words[1:]],
                cwd=folder,
                env=environment,
                text=True,
                capture_output=True,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as late:
            return subprocess.CompletedProcess(words, 124, "", f"{late}\n{late.stderr!r}")

    torch = run("python", "-c", "import torch; print(torch.__version__)").stdout.strip()
    yield Trial(version, torch, "installation", took, bool(torch))
    alone = (
        "import gigl_loader, pathlib, sys; home = pathlib.Path(gigl_loader.__file__); "
        "assert home.is_relative_to(sys.prefix), home; assert (home.parent / 'py.typed').exists()"
    )
    for page in ("import", "gigl-loader --version", *pages):
        # a folder for each: pages write files, and no page may rest on another's
        folder = Path(tempfile.mkdtemp(dir=home))
        if page == "import":
            words = ["python", "-c", alone]
        elif page.endswith(".md"):
            (folder / "page.py").write_text(script((ROOT / page).read_text()))
            words = ["python", "page.py"]
        else:
            words = page.split()
        began = time.monotonic()
        done = run(*words, folder=folder)
        if done.returncode:
            print(f"{page} on {version}: exit code {done.returncode}\n{done.stderr[-4000:]}")
        yield Trial(version, torch, page, time.monotonic() - began, done.returncode == 0)


def for_a_person(project: dict[str, object]) -> list[str]:
    """Return what nobody but a person can do before this is published, in order."""
    version = project["version"]
    steps = []
    if "urls" not in project:
        steps.append(
            "choose where the repository is, and name it as [project.urls] in pyproject.toml"
        )
    relative = re.findall(r"\]\((?!https?://)[^)]+\)", (ROOT / "README.md").read_text())
    if relative:
        steps.append(
            f"make the README's {len(relative)} relative links absolute: the index shows it alone"
        )
    if f"\n## {version}\n" not in (ROOT / "docs" / "changelog.md").read_text():
        steps.append(f"date the release: its heading in docs/changelog.md has to be '## {version}'")
    steps += [
        f"make sure that the name {project['name']!r} is free on the index, or yours",
        "on the index, add this repository's release.yml, environment 'pypi', as trusted publisher",
        "in the repository's settings, make the environments 'pypi' and 'github-pages'",
        f"push the tag v{version}: release.yml builds, tries and publishes wheel, sdist and site",
        "put the sdist's address and sha256 into recipe/recipe.yaml, and offer it to conda-forge",
    ]
    return steps


def table(trials: Sequence[Trial]) -> str:
    """Return a row for each page, and a column for each Python: seconds, or that it failed."""
    heads = list(dict.fromkeys(f"{one.python}, torch {one.torch}" for one in trials))
    cells: dict[str, dict[str, str]] = {}
    for one in trials:
        cell = f"{one.seconds:.1f} s" if one.ok else "FAILED"
        cells.setdefault(one.page, {})[f"{one.python}, torch {one.torch}"] = cell
    rows = [["", *heads], *([page, *map(row.get, heads)] for page, row in cells.items())]
    return "\n".join("| " + " | ".join(str(cell or "") for cell in row) + " |" for row in rows)


def pythons(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield executable and version of each interpreter that is here; name those that are not."""
    for name in names:
        done = subprocess.run([ROOT / ".ci" / "find-python", name], capture_output=True, text=True)
        if done.returncode:
            print(f"not tried: {done.stderr.strip()}")
        else:
            python, version = done.stdout.split()
            yield python, version


def main() -> int:
    """Return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description="Try the wheel as a stranger would get it")
    parser.add_argument(
        "--quick", action="store_true", help="the oldest Python and the README alone"
    )
    parser.add_argument("--pythons", nargs="+", metavar="python3.X")
    args = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    names = args.pythons or [f"python{one}" for one in (named[:1] if args.quick else named)]
    with tempfile.TemporaryDirectory() as folder:
        files = build(Path(folder))
        for file in files:
            print(f"{file.name}: {file.stat().st_size:,} bytes, {len(names_in(file))} files")
        (wheel,) = [file for file in files if file.suffix == ".whl"]
        faults = [fault for file in files for fault in faults_of(file)]
        faults += metadata_faults(wheel, project)
        trials = []
        for python, version in pythons(names):
            pages = ("README.md", *(() if args.quick else TASKS))
            versions = ["-c", str(ROOT / ".ci" / "constraints.txt")] if args.quick else []
            for trial in try_on(python, version, wheel, pages, Path(folder), versions):
                print(f"{trial.python} {trial.page}: {trial.seconds:.1f} s", flush=True)
                trials.append(trial)
    if not trials:
        faults.append("no Python was found to try the wheel on")
    print(f"\n{table(trials)}\n")
    faults += [f"{one.page} failed on {one.python}" for one in trials if not one.ok]
    for fault in faults:
        print(f"wrong: {fault}")
    if not args.quick:
        print("To publish, a person has to:")
        for number, step in enumerate(for_a_person(project), 1):
            print(f"{number}. {step}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
