"""Tutorials, done as their readers do them: scripts are saved and started by torchrun."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gigl_loader.testing import free_port
from tests.support.scripts import ForkedPython, in_namespace, run_python

ROOT = Path(__file__).parents[2]
QUICKSTART = (ROOT / "docs" / "quickstart.md").read_text()
PAGE = (ROOT / "docs" / "guide" / "two_machines.md").read_text()
SCRIPT = re.compile(r"^```\{code-block\} python\n:caption: (\w+\.py)\n(.*?)^```$", re.M | re.S)
TORCHRUN = ["-m", "torch.distributed.run"]
MACHINES = ROOT / "examples" / "benchmarks" / "faults"

pytestmark = pytest.mark.multiprocess


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Write the scripts of the page; return the environment to start them in."""
    scripts = dict(SCRIPT.findall(PAGE))
    assert sorted(scripts) == ["partition.py", "train.py"]
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def _cut(count: int, folder: Path, environment: dict[str, str]) -> None:
    done = run_python("partition.py", str(count), environment=environment, folder=folder)
    assert done.returncode == 0, done.stderr[-4000:]


def _check(printed: str) -> None:
    """All validation nodes count, and the model learns."""
    last = printed.strip().splitlines()[-1]
    found = re.fullmatch(r"epoch 4: (0\.\d+|1\.000) of 600 validation nodes", last)
    assert found, printed
    assert float(found[1]) > 0.9


def _torchrun(
    words: str, folder: Path, environment: dict[str, str]
) -> "subprocess.CompletedProcess[str]":
    return run_python(*TORCHRUN, *words.split(), environment=environment, folder=folder)


def test_the_quickstart_under_torchrun(tmp_path: Path, environment: dict[str, str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", QUICKSTART, re.M | re.S)
    first, _, *rest = blocks  # "Save the first block of this page and these two"
    assert len(rest) == 2
    (tmp_path / "train.py").write_text("\n".join([first, *rest]))
    command = "--standalone --nproc-per-node 2 train.py"
    assert f"$ torchrun {command}\n" in QUICKSTART
    done = _torchrun(command, tmp_path, environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(re.findall(r"^epoch \d: loss \d\.\d{3}$", done.stdout, re.M)) == 2 * 3


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.wide), 2])
def test_on_one_machine(ranks: int, tmp_path: Path, environment: dict[str, str]) -> None:
    command = f"--standalone --nproc-per-node {ranks} train.py"
    assert f"$ torchrun {command}\n" in PAGE
    _cut(1, tmp_path, environment)
    done = _torchrun(command, tmp_path, environment)
    assert done.returncode == 0, done.stderr[-4000:]
    _check(done.stdout)


@contextlib.contextmanager
def _machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    """Give the address of machine 0, and the names of both; empty ones where they are this one.

    Machines are network namespaces, if such can be made.
    """
    monkeypatch.syspath_prepend(str(MACHINES))
    import _machines

    with contextlib.ExitStack() as stack:
        stack.callback(sys.modules.pop, "_machines")
        try:
            found = stack.enter_context(_machines.Machines(_machines.Link("a cable")))
        except (OSError, subprocess.CalledProcessError):
            yield "127.0.0.1", ["", ""]
        else:
            yield _machines.ADDRESSES[0], [found.name(machine) for machine in range(2)]


def _start(
    words: list[str], machine: str, folder: Path, environment: dict[str, str]
) -> ForkedPython:
    command = [sys.executable, *words]
    if machine:
        command = in_namespace(machine, *words)
        environment = {**environment, "GLOO_SOCKET_IFNAME": machine}  # its end of the cable
    return ForkedPython(
        command,
        cwd=folder,
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _commands(address: str) -> list[list[str]]:
    """Return the page's command for each machine, with the address of machine 0."""
    (shown,) = re.findall(r"^\$ torchrun (--nnodes 2 .*?train\.py)$", PAGE, re.M | re.S)
    words = shown.replace("\\\n", " ").split()
    words[words.index("--master-addr") + 1] = address
    words[words.index("--master-port") + 1] = str(free_port())
    at = words.index("--node-rank") + 1
    return [[*TORCHRUN, *words[:at], machine, *words[at + 1 :]] for machine in ("0", "1")]


@pytest.mark.longest
def test_on_two_machines(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _cut(2, tmp_path, environment)
    made = run_python("-m", "gigl_loader", "token", environment=environment)
    token = made.stdout.strip()
    # namespaces share a kernel, by which the ranks would know that they are on one machine
    environment |= {"GIGL_LOADER_CLUSTER_TOKEN": token, "GIGL_LOADER_SAME_MACHINE": "0"}
    with _machines(monkeypatch) as (address, machines), contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(_start(words, machine, tmp_path, environment))
            for machine, words in zip(machines, _commands(address), strict=True)
        ]
        try:
            printed = [one.communicate(timeout=240) for one in started]
        finally:
            for one in started:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.pid, signal.SIGKILL)
    assert [one.returncode for one in started] == [0, 0], "".join(err for _, err in printed)[-6000:]
    _check(printed[0][0])
    assert "epoch" not in printed[1][0]
