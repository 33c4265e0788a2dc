"""`.ci/with-torch`, beside programs that take the place of interpreters and write down calls."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/bash
# An interpreter as .ci/with-torch uses it; the file beside it lists the modules that it lacks.
case "$*" in
  *"import importlib.util, sys"*)
    [[ -f $0.lacks ]] || exit 1  # too old
    echo "$0"; [[ ${PYTHONPATH-} == *.gpu_pack/* ]] || cat "$0.lacks" ;;
  *"python%d.%d"*) echo python3.12 ;;
  "-m tarfile -e "*)
    echo "unpacked ${4##*/} by ${0##*/}" >>"$NOTES"
    mkdir "$5" ;;
  *"import site"*) echo "site of $0" ;;
  *importlib.metadata*) echo "torch==2.9.0+cu128" ;;
  "-m venv --clear --system-site-packages "*)
    echo "venv by ${0##*/}" >>"$NOTES"
    mkdir -p "$5/bin" "$5/lib/python3.12/site-packages"
    cp "$0" "$5/bin/python"; cp "$0.lacks" "$5/bin/python.lacks" ;;
  "-m pip install "*)
    held=$(cat "$7")
    echo "pip ${*:8} held ${held}" >>"$NOTES"
    [[ -z ${NO_NETWORK-} ]] || exit 1
    : >"$0.lacks" ;;
  "- "*) exec REAL "$@" ;;
  *) echo "ran ${0##*/} $*${PYTHONPATH:+ with $PYTHONPATH}" >>"$NOTES" ;;
esac
""".replace("REAL", sys.executable)


@dataclass
class Machine:
    """A checkout with .ci/with-torch, and the interpreters on its PATH."""

    folder: Path

    def add(self, name: str, lacks: str | None) -> Path:
        """Add an interpreter that lacks modules; None: it is too old."""
        path = self.folder / "programs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(PYTHON)
        path.chmod(0o755)
        if lacks is not None:
            path.with_name(f"{name}.lacks").write_text("".join(f"{m}\n" for m in lacks.split()))
        return path

    def run(self, python: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [".ci/with-torch", python, "bench.py", "--minutes", "9"],
            cwd=self.folder / "main",
            env={
                "PATH": f"{self.folder}/programs:/usr/bin:/bin",
                "NOTES": f"{self.folder}/notes",
                **environment,
            },
            text=True,
            capture_output=True,
            timeout=120,
        )

    def notes(self) -> list[str]:
        """Return what was done since the last call."""
        path = self.folder / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "main" / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "with-torch", tmp_path / "main" / ".ci")
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "main")
    made = Machine(tmp_path)
    for name in ("python3", "python"):  # the machine's own are not found
        made.add(name, None)
    return made


def test_an_interpreter_that_has_all_runs_it_as_it_is(machine: Machine) -> None:
    machine.add("python3.12", "")
    assert machine.run().returncode == 0
    assert machine.notes() == ["ran python3.12 bench.py --minutes 9"]


def test_the_one_with_torch_goes_before_a_newer_one(machine: Machine) -> None:
    machine.add("python3.14", "torch torch_geometric numba")
    machine.add("python3.11", "")
    machine.run()
    assert machine.notes() == ["ran python3.11 bench.py --minutes 9"]


def test_what_is_missing_is_added_beside_the_torch_that_is_there(machine: Machine) -> None:
    python = machine.add("python3", "msgspec warp")
    assert machine.run().returncode == 0
    assert machine.notes() == [
        "venv by python3",
        "pip msgspec>=0.20 held torch==2.9.0+cu128",
        "pip warp-lang>=1.19 held torch==2.9.0+cu128",
        "ran python bench.py --minutes 9",
    ]
    place = machine.folder / "main" / ".venv-gpu"
    interpreter = place / "lib" / "python3.12" / "site-packages" / "interpreter.pth"
    assert interpreter.read_text() == f"site of {python}\n"
    machine.run()
    assert machine.notes() == ["ran python bench.py --minutes 9"], "the environment stays"


def test_without_a_network_what_is_there_has_to_do(machine: Machine) -> None:
    machine.add("python3", "warp pytest")
    done = machine.run(NO_NETWORK="1")
    assert done.returncode == 0
    assert "goes on without warp pytest" in done.stderr
    _, pip, ran = machine.notes()
    assert pip == "pip warp-lang>=1.19 pytest>=8 held torch==2.9.0+cu128"
    assert ran == "ran python bench.py --minutes 9"


def test_what_was_packed_for_this_python_is_unpacked(machine: Machine) -> None:
    """Beside the checkout that it travelled with, on a machine without a network."""
    machine.add("python3", "msgspec warp")
    pack = machine.folder / "main" / ".gpu_pack"
    pack.mkdir()
    (pack / "python3.13.tar.xz").touch()
    assert machine.run(NO_NETWORK="1").returncode != 0
    machine.notes()
    (pack / "python3.12.tar.xz").touch()
    ran = f"ran python3 bench.py --minutes 9 with {pack}/python3.12"
    assert machine.run(NO_NETWORK="1").returncode == 0
    assert machine.notes() == ["unpacked python3.12.tar.xz by python3", ran]
    machine.run(NO_NETWORK="1", PYTHONPATH="before")
    assert machine.notes() == [f"{ran}:before"], "once"


def test_a_required_package_that_cannot_be_had_ends_it(machine: Machine) -> None:
    machine.add("python3", "msgspec")
    assert machine.run(NO_NETWORK="1").returncode != 0
    assert [line.split()[0] for line in machine.notes()] == ["venv", "pip"]


def test_a_named_interpreter_is_the_one(machine: Machine, tmp_path: Path) -> None:
    machine.add("python3.12", "")
    own = machine.add("own", "")
    assert machine.run(str(own)).returncode == 0
    assert machine.notes() == ["ran own bench.py --minutes 9"]
    done = machine.run("python3")
    assert done.returncode == 1
    assert "no Python of 3.11 or later: looked for python3; name another" in done.stderr
