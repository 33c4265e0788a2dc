import importlib.metadata
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gigl_loader.commands import diagnose
from gigl_loader.sampler.gpu import kernel_choice
from tests.support.conditions import Gpus
from tests.support.scripts import run_python


@pytest.mark.multiprocess
def test_the_command_reports_and_tries() -> None:
    done = run_python("-m", "gigl_loader.diagnose", "--seconds", "0.5", "--num-workers", "1")
    printed = done.stdout
    for section in ("versions", "graphlearn-torch", "memory", "network", "self-test (0.5 s)"):
        assert f"\n{section}\n" in printed
    for line in ("each seed once, features right", "seeds/s: ", "nothing of theirs is left"):
        assert line in printed, done.stderr
    # a machine with low limits may have findings; only then the status is 1
    assert done.returncode == int("!!" in printed)


def test_the_trial_takes_ten_seconds_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    trials: list[tuple] = []

    def trial(*how: Any) -> Iterator[Any]:
        trials.append(how)
        return iter(())

    monkeypatch.setattr(diagnose, "self_test", trial)
    diagnose.main([])  # which may find something, on a small machine
    diagnose.main(["--seconds", "3", "--num-workers", "5"])
    assert trials == [(10.0, 2), (3.0, 5)]


def test_a_failing_trial_is_a_finding() -> None:
    (finding,) = diagnose.self_test(seconds=0.1, num_workers=-1)
    assert finding.bad
    assert "failed: ConfigError: num_workers must be" in finding.text


def test_a_trial_leaves_the_process_as_it_was() -> None:
    """One that has drawn a graph, and then cannot start its workers."""
    before = list(warnings.filters), sys.excepthook, torch.get_rng_state().tolist()
    diagnose.main(["--seconds", "0", "--num-workers", "-1"])
    assert (list(warnings.filters), sys.excepthook, torch.get_rng_state().tolist()) == before


def test_the_report_says_what_to_look_at(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = diagnose.Finding("a", "fine"), diagnose.Finding("b", "broken", bad=True)
    assert diagnose.report({"one": lambda: iter([good])})
    assert "all is well" in capsys.readouterr().out
    assert not diagnose.report({"one": lambda: iter([good, bad])})
    assert "!! b                  broken\n\nlook at the lines with !!" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("port", "text", "bad"),
    [(None, "are not set", False), ("x", "is no number", True), ("1", "nothing listens", False)],
)
def test_the_master_is_looked_for(
    monkeypatch: pytest.MonkeyPatch, port: str | None, text: str, bad: bool
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.delenv("MASTER_PORT", raising=False)
    if port is not None:
        monkeypatch.setenv("MASTER_PORT", port)
    (finding,) = [found for found in diagnose.network() if found.name == "master"]
    assert text in finding.text
    assert finding.bad == bad


def test_gpus_and_their_kernels_are_named(gpus: Gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> dict[str, str]:
        return {one.name: one.text for one in diagnose.versions()}

    assert told()["GPUs"].startswith("none found (torch is built for ")
    gpus += [0, 10**9]
    assert told()["GPUs"] == "2: H000 (0.0 of 80.0 GB free), H100 (1.0 of 80.0 GB free)"
    versions = {"warp-lang": "1.19"}
    known = importlib.metadata.version

    def version(package: str) -> str:
        if package == "warp-lang" and not versions:
            raise importlib.metadata.PackageNotFoundError(package)
        return versions.get(package) or known(package)

    monkeypatch.setattr(importlib.metadata, "version", version)
    with monkeypatch.context() as patch:  # a driver that Warp takes; see sampler/gpu/test_choose.py
        patch.setattr(kernel_choice, "reason_against_warp", lambda device: (None, None))
        assert told()["kernels for GPUs"] == "Warp 1.19"
    versions.clear()
    assert "pip install 'gigl_loader[gpu]'" in told()["kernels for GPUs"]
