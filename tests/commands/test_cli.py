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


@pytest.mark.parametrize("verb", cli.VERBS)
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
    lines = said.splitlines()
    assert lines.index("graph stores:") < lines.index("machines:")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [("sevre", "did you mean 'serve'?"), ("stopjob", "did you mean 'stop-job'?"), ("x", "serve, ")],
)
def test_a_verb_with_a_typo_gets_a_suggestion(
    typed: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([typed])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"there is no verb {typed!r}: " in said
    assert hint in said


def test_help_has_defaults_and_groups(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    said = capsys.readouterr().out
    for option, default in {
        "--rank RANK": "0",
        "--master-port MASTER_PORT": "29600",
        "--max-jobs N": "16",
        "--channel-memory SIZE": "no limit",
        "--network-timeout SECONDS": "10.0",
    }.items():
        text = " ".join(said.partition(f"\n  {option}")[2].partition("\n  -")[0].split())
        assert text.endswith(f"(default: {default})")
    assert "(default: False)" not in said
    assert "(default: [])" not in said
    titles = [line for line in said.splitlines() if line.endswith(":") and line[0] != " "]
    groups = ["the graph:", "the servers:", "the jobs:", "waits:", "metrics:", "authentication:"]
    assert titles == ["options:", *groups, "examples:"]


SERVE = ["serve", "--master-addr", "127.0.0.1", "--root"]
INFER = ["infer", "--out", "out", "--model"]
GNN = "torch_geometric.nn:GraphSAGE"
HERE = [*INFER, GNN, "--root", "GRAPH"]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        *[([verb, "--help"], 0, "usage: gigl-loader") for verb in cli.VERBS],
        (["serve"], 2, "required: --root"),
        ([*SERVE, "GRAPH", "--edges", "some"], 2, "argument --edges: invalid choice"),
        ([*SERVE, "GRAPH", "--rank", "2"], 2, "storage_rank must be in [0, 1), got 2"),
        ([*SERVE, "GRAPH", "--port", "7000"], 2, "give --master-port 7000 in place of --port"),
        ([*SERVE, "GRAPH", "--channel-memory", "much"], 2, "channel_memory"),
        ([*SERVE, "GRAPH", "--network-timeout", "0"], 2, "network_timeout"),
        ([*SERVE, "GRAPH", "--tls", "no-certs"], 2, "no-certs"),
        ([*SERVE, "GRAPH", "--host", "0.0.0.0"], 2, "means all addresses of a machine"),
        ([*SERVE, "nowhere/graph"], 2, "root='nowhere/graph' does not exist"),
        ([*SERVE, "GRAPH", "--master-port", "BUSY"], 2, "cannot listen on 127.0.0.1:BUSY"),
        ([*SERVE, "GRAPH", "--master-port=0", "--metrics-port", "BUSY"], 2, "cannot listen on 127"),
        ([*INFER, GNN], 2, "one of the arguments --root --server is required"),
        ([*INFER, GNN, "--root", "nowhere"], 2, "root='nowhere' does not exist"),
        ([*HERE, "--job", "nightly"], 2, "--job: for a graph store"),
        ([*INFER, "GraphSAGE", "--root", "GRAPH"], 2, "--model must be MODULE:NAME"),
        ([*INFER, "torch_geo:X", "--root", "GRAPH"], 2, "No module named 'torch_geo'"),
        ([*HERE, "--model-options", "{"], 2, "must be JSON, got '{'"),
        ([*HERE, "--model-options", "[1]"], 2, "must be a JSON object of keywords"),
        ([*HERE, "--checkpoint", "no.pt"], 2, "--checkpoint no.pt cannot be loaded"),
        ([*INFER, GNN, "--server", "127.0.0.1:BOUND"], 1, "nothing listens there"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_told_before_torch_is_imported(
    words: list[str], code: int, text: str, tmp_path: Path
) -> None:
    (tmp_path / "graph").mkdir()
    script = (
        "import sys; from gigl_loader.commands import cli\n"
        "try: code = cli.main(sys.argv[1:])\n"
        "except SystemExit as end: code = end.code\n"
        "sys.exit('torch was imported' if 'torch' in sys.modules else code)"
    )
    with socket.create_server(("127.0.0.1", 0)) as busy, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        places = {
            "GRAPH": str(tmp_path / "graph"),
            "BUSY": str(busy.getsockname()[1]),
            "BOUND": str(bound.getsockname()[1]),
        }

        def placed(word: str) -> str:
            for name, place in places.items():
                word = word.replace(name, place)
            return word

        done = subprocess.run(
            [sys.executable, "-c", script, *map(placed, words)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == code, done.stderr
    assert "torch was imported" not in done.stderr
    assert placed(text) in done.stdout + done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_verbs_and_options(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("shtab")
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("stop-job", "network-timeout", "edge-weight"):
        assert word in script


def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert cli.main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "folder").mkdir()
    for line, wanted in {
        "gigl-loader sta": ["status"],
        "gigl-loader serve --edges ": ["own", "all"],
        "gigl-loader infer --check": ["--checkpoint"],
        "gigl-loader serve --root fol": ["folder"],
    }.items():
        words = " ".join(f"'{word}'" for word in line.split(" "))
        asked = (
            f"source ./script; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
            "function=$(complete -p gigl-loader | grep -oE -- '-F [^ ]+')\n"
            'word="${COMP_WORDS[COMP_CWORD]}"\n'
            '${function#-F } gigl-loader "$word" "${COMP_WORDS[COMP_CWORD - 1]}"\n'
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["bash", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == wanted, done.stderr


def test_completion_without_its_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert cli.main(["completion", "bash"]) == 2
    assert 'pip install "gigl_loader[completion]"' in capsys.readouterr().err


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
        "code = cli.main(['status', '--json', sys.argv[1]]); "
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
