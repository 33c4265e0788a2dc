"""`gigl-loader VERB`: one door, each verb with an example."""

import io
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from gigl_loader.commands import cli
from gigl_loader.runtime.transport import Security
from gigl_loader.runtime.transport.security import (
    INSECURE_VARIABLE,
    TLS_DIR_VARIABLE,
    TOKEN_VARIABLE,
)

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    "verb", [verb for verb, (where, _) in cli.VERBS.items() if cli._is_installed(where)]
)
def test_each_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([verb, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "example" in said
    assert f"gigl-loader {verb}" in said


def test_the_verbs_that_are_here_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    said = capsys.readouterr().out
    for verb in ("serve", "status", "certs", "token", "diagnose"):
        assert f"  {verb}" in said
    with pytest.raises(SystemExit) as ended:
        cli.main(["no-such-verb"])
    assert ended.value.code == 2


def test_without_a_verb_it_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    said = capsys.readouterr().out
    assert "serve a partition to compute processes" in said
    assert "usage: gigl-loader" in said
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"gigl-loader {version('gigl_loader')}\n"


def test_a_partition_that_exists_names_the_option_of_the_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n1,0\n")
    (tmp_path / "nodes.csv").write_text("id,x\n0,1.0\n1,2.0\n")
    words = [
        "partition",
        f"--nodes={tmp_path}/nodes.csv",
        f"--edges={tmp_path}/edges.csv",
        f"--root={tmp_path}/parts",
        "--num-partitions=1",
        "--quiet",
    ]
    assert cli.main(words) == 0, capsys.readouterr().err
    assert cli.main(words) != 0
    assert "or give --overwrite" in capsys.readouterr().err


@pytest.mark.parametrize("has_handler", [False, True])
def test_serve_leaves_the_log_as_it_was(
    has_handler: bool, tmp_path: Path, handlers_of_root: Callable[..., None]
) -> None:
    root, own = logging.getLogger(), logging.StreamHandler(io.StringIO())
    handlers_of_root(*[own] * has_handler)
    level = root.level
    for _ in range(2):
        assert cli.main(["serve", "--root", str(tmp_path / "nowhere")]) == 2
        assert root.handlers == ([own] if has_handler else [])
        assert (root.level, own.filters) == (level, [])
    assert ("nowhere" in own.stream.getvalue()) is has_handler


def test_certificates_and_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in (TLS_DIR_VARIABLE, TOKEN_VARIABLE, INSECURE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    assert cli.main(["certs", str(tmp_path / "folder"), "storage0", "10.0.0.1"]) == 0
    security = Security.resolve(str(tmp_path / "folder"))
    security.context(server=True)
    security.context(server=False)
    (tmp_path / "file").write_text("")
    assert cli.main(["certs", str(tmp_path / "file"), "storage0"]) == 2
    capsys.readouterr()
    assert cli.main(["token"]) == 0
    token = capsys.readouterr().out.strip()
    Security.resolve(token=token).check_listener("10.0.0.1")


def test_a_probe_of_a_closed_port_ends_at_once_and_imports_little() -> None:
    script = (
        "import sys; from gigl_loader.commands import cli; "
        "code = cli.main(['status', sys.argv[1]]); "
        "assert not {'torch', 'numba'} & set(sys.modules); sys.exit(code)"
    )
    with socket.socket() as taken:  # nobody listens, and nobody else gets the port meanwhile
        taken.bind(("127.0.0.1", 0))
        asked = subprocess.run(
            [sys.executable, "-c", script, f"127.0.0.1:{taken.getsockname()[1]}"],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert asked.returncode == 3, asked.stderr
    answer = json.loads(asked.stdout)
    assert answer["health"] == "not listening"
    assert "nothing listens there" in answer["error"]
