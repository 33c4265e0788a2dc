"""`.ci/in-venv`, beside programs that take the place of `venv`, pip and uv and write down calls."""

import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYTHON = """#!/bin/bash
# Python as .ci/in-venv uses it: what would install is written down.
case "$*" in
  *ensurepip*) echo "$0 3.11.7" ;;
  "-m venv --clear "*)
    echo "venv $4" >>"$NOTES"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
  "-m pip config list") cat "$PIP_LIST" ;;
  "-m pip install "*" uv")
    echo "pip uv" >>"$NOTES"
    [[ -n ${PIP_HAS_UV-} ]] && cp "$PIP_HAS_UV" "${0%/*}/uv" ;;
  "-m pip "*) echo "pip ${*:3}" >>"$NOTES"; exit "${PIP_ENDS-0}" ;;
  *) exec REAL "$@" ;;
esac
""".replace("REAL", sys.executable)
UV = """#!/bin/bash
echo "uv $*" >>"$NOTES"
env | grep -E '^(SSL_CERT_FILE|SSL_CLIENT_CERT|HTTPS?_PROXY|UV_HTTP_TIMEOUT)=' | sort >>"$NOTES"
exit "${UV_ENDS-0}"
"""


def _program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@dataclass
class Checkout:
    """A folder with .ci/in-venv, and the programs that it finds."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *command: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        words = [".ci/in-venv", "python3.11", *(command or ("true",))]
        return subprocess.run(
            words,
            cwd=self.folder,
            env={**self.environment, **environment},
            text=True,
            capture_output=True,
            timeout=120,
        )

    def notes(self) -> list[str]:
        """Return what was done since the last call."""
        path = Path(self.environment["NOTES"])
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    def installs(self) -> list[str]:
        """Return the extras of each installation since the last call, after who did it."""
        return [
            f"{line.split()[0]} {line.rsplit(' -e ', 1)[1]}"
            for line in self.notes()
            if " -e " in line
        ]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    shutil.copytree(ROOT / ".ci", tmp_path / "main" / ".ci")
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "main")
    _program(tmp_path / "programs" / "python3.11", PYTHON)
    (tmp_path / "pip.list").write_text("")
    system = f"{Path('/usr/bin')}:{Path('/bin')}"  # without this environment's own uv
    return Checkout(
        tmp_path / "main",
        {
            "PATH": f"{tmp_path / 'programs'}:{system}",
            "HOME": str(tmp_path),
            "NOTES": str(tmp_path / "notes"),
            "PIP_LIST": str(tmp_path / "pip.list"),
        },
    )


@pytest.fixture
def uv(tmp_path: Path, checkout: Checkout) -> Path:
    """Put uv on the PATH."""
    return _program(tmp_path / "programs" / "uv", UV)


def test_uv_of_the_path_installs_and_the_times_are_told(checkout: Checkout, uv: Path) -> None:
    done = checkout.run("sh", "-c", "echo $VIRTUAL_ENV; exit 7", EXTRAS="examples")
    assert done.returncode == 7
    assert done.stdout == f"{checkout.folder}/.venv\n"
    made, *rest = checkout.notes()
    (install,) = [line for line in rest if line.startswith("uv ")]
    assert made == "venv .venv"
    assert "pip install" in install
    assert "--no-compile-bytecode" in install
    assert install.endswith("-c .ci/constraints.txt -e .[examples]")
    told = [line for line in done.stderr.splitlines() if line.startswith("in-venv: ")]
    assert len(told) == 3
    for line, words in zip(told, ("made with", "packages installed by uv", "sh in"), strict=True):
        assert words in line
        assert line.split()[-1] == "s"
        assert float(line.split()[-2]) < 120


def test_pip_brings_uv_once(checkout: Checkout, tmp_path: Path) -> None:
    checkout.environment["PIP_HAS_UV"] = str(_program(tmp_path / "uv", UV))
    assert checkout.run(EXTRAS="examples").returncode == 0
    assert checkout.notes()[1] == "pip uv"
    assert checkout.run(EXTRAS="ray").returncode == 0
    assert [line.split()[0] for line in checkout.notes()] == ["uv"]


@pytest.mark.parametrize("why", ["no uv", "uv fails", "not for uv"])
def test_pip_installs_where_uv_cannot(why: str, checkout: Checkout, tmp_path: Path) -> None:
    if why != "no uv":
        _program(tmp_path / "programs" / "uv", UV)
    if why == "not for uv":
        (tmp_path / "pip.list").write_text("global.only-binary=':all:'\n")
    done = checkout.run(EXTRAS="examples", UV_ENDS="2" if why == "uv fails" else "0")
    assert done.returncode == 0, done.stderr
    last = checkout.notes()[-1]
    assert last == "pip install -qq --no-compile -c .ci/constraints.txt -e .[examples]"
    assert "packages installed by pip (examples)" in done.stderr
    assert ("only-binary: uv is not used" in done.stderr) == (why == "not for uv")


def test_a_later_command_adds_its_extras(checkout: Checkout, uv: Path) -> None:
    checkout.run(EXTRAS="examples")
    assert checkout.installs() == ["uv .[examples]"]
    assert "installed" not in checkout.run(EXTRAS="examples").stderr
    assert checkout.notes() == []
    checkout.run(EXTRAS="examples,ray")
    assert checkout.installs() == ["uv .[examples,ray]"]
    checkout.run()  # what the tests need
    assert checkout.installs() == ["uv .[examples,ray,dev,metis,objects,release,tables]"]
    checkout.run(EXTRAS="")
    assert checkout.notes() == []


def test_a_change_of_the_project_installs_again_what_was_there(
    checkout: Checkout, uv: Path
) -> None:
    checkout.run(EXTRAS="examples")
    checkout.notes()
    with (checkout.folder / "pyproject.toml").open("a") as project:
        project.write("# changed\n")
    checkout.run(EXTRAS="ray")
    assert checkout.installs() == ["uv .[examples,ray]"]


def test_an_installation_that_failed_is_done_again(checkout: Checkout, uv: Path) -> None:
    done = checkout.run("echo", "not reached", EXTRAS="ray", UV_ENDS="1", PIP_ENDS="5")
    assert (done.returncode, done.stdout) == (5, "")
    checkout.notes()
    assert checkout.run(EXTRAS="ray").returncode == 0
    assert checkout.notes()[0].startswith("uv "), "the environment itself stays"


def test_another_python_starts_over(checkout: Checkout, uv: Path) -> None:
    checkout.run(EXTRAS="examples,ray")
    checkout.notes()
    python = uv.with_name("python3.11")
    python.write_text(python.read_text().replace("3.11.7", "3.11.8"))
    checkout.run(EXTRAS="ray")
    made, install, *_ = checkout.notes()
    assert made == "venv .venv"
    assert install.endswith("-e .[ray]")


def test_no_extras_at_all(checkout: Checkout, uv: Path) -> None:
    assert checkout.run(EXTRAS="").returncode == 0
    assert checkout.installs() == ["uv ."]


# --- what pip is configured with ------------------------------------------------------------------


def test_uv_is_told_what_pip_is_configured_with(checkout: Checkout, uv: Path) -> None:
    Path(checkout.environment["PIP_LIST"]).write_text(
        ":env:.cert='/etc/env.crt'\n"
        ":env:.default-timeout='180'\n"
        ":env:.disable-pip-version-check='1'\n"
        ":env:.find-links='/opt/links https://links.invalid/torch?a=b'\n"
        "download.index-url='https://download.invalid/'\n"
        "global.cert='/etc/global.crt'\n"
        "global.constraint='/etc/a.txt\\n/etc/b.txt'\n"
        "global.extra-index-url='\\nfile:///opt/simple\\nhttps://more.invalid/'\n"
        "global.find-links='/opt/other'\n"
        "global.index-url='https://global.invalid/simple'\n"
        "install.index-url='https://install.invalid/simple'\n"
    )
    assert checkout.run(EXTRAS="examples").returncode == 0
    _, install, *variables = checkout.notes()
    for words in (
        " --find-links /opt/links --find-links https://links.invalid/torch?a=b ",
        " --extra-index-url file:///opt/simple --extra-index-url https://more.invalid/ ",
        " --index-url https://install.invalid/simple ",
        " --constraint /etc/a.txt --constraint /etc/b.txt ",
        " --index-strategy unsafe-best-match ",
        f" --python {checkout.folder}/.venv/bin/python ",
    ):
        assert words in install
    for other in ("/opt/other", "global.invalid", "download.invalid"):
        assert other not in install, "variables go before sections, and [install] before [global]"
    assert variables == ["SSL_CERT_FILE=/etc/env.crt", "UV_HTTP_TIMEOUT=180"]


# --- the command ----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_command(number: signal.Signals, checkout: Checkout, uv: Path) -> None:
    checkout.run()
    script = "trap 'echo told; exit 5' TERM HUP; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(
        [".ci/in-venv", "python3.11", "bash", "-c", script],
        cwd=checkout.folder,
        text=True,
        env=checkout.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("told\n", 5)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_it_ends_as_the_command_ends(number: int, checkout: Checkout, uv: Path) -> None:
    assert checkout.run("bash", "-c", f"kill -{number:d} $$").returncode == -number


def test_a_command_that_is_not_there(checkout: Checkout, uv: Path) -> None:
    done = checkout.run("no-such-command")
    assert done.returncode == 127
    assert "no-such-command: No such file" in done.stderr
