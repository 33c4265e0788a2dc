"""The transport timed: within a machine, and to a host that answers."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gigl_loader.commands.capacity import measure
from gigl_loader.commands.capacity.measure import Answerer, SecondHost, Timed, costs_of
from gigl_loader.commands.capacity.needs import SHIPPED, Costs
from gigl_loader.commands.plan import main
from gigl_loader.errors import JoinRefusedError
from gigl_loader.runtime.transport import Mode, Security

TOKEN = "kq3Jv0aWZbX7mT9rLs2UdQ"
MODES = {
    "token": (Security.resolve("", TOKEN, False), {True, False}),
    "insecure": (Security.resolve("", "", True), {False}),
    "local": (Security.local(), {False}),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_second_host_is_timed_in_the_modes_that_both_have(mode: str) -> None:
    security, encrypted = MODES[mode]
    with Answerer("127.0.0.1", 0, security) as answerer:
        other = SecondHost(*answerer.address, security)
        measure.meet(other)
        found = measure.between(other, rounds=1, seconds=0.05)
        assert set(found) == encrypted
        for timed in found.values():
            assert timed.gb_per_s > 0.001  # in 0.05 s and what is under way, a few times 8 MB
            assert timed.s_per_gb >= 0
        stranger = replace(security, token="x" * 30)
        if security.mode is Mode.TOKEN:
            with pytest.raises(JoinRefusedError):
                measure.meet(replace(other, security=stranger))


def test_what_crosses_a_link_costs_more_than_what_stays() -> None:
    here = {False: Timed(4.0, 0.4), True: Timed(1.3, 1.4)}
    assert costs_of(here, {}) == {
        "plain_s_per_gb": 0.2,
        "tls_s_per_gb": 0.7,
        "plain_gb_per_s": 4.0,
        "tls_gb_per_s": 1.3,
        "link_s_per_gb": 0.0,
        "link_gbit": 0.0,
    }
    there = {False: Timed(1.25, 0.9), True: Timed(1.0, 1.7)}
    found = costs_of(here, there)
    assert found["link_s_per_gb"] == pytest.approx((0.5 + 0.3) / 2)
    assert found["link_gbit"] == 10
    assert (found["plain_gb_per_s"], found["tls_gb_per_s"]) == (1.25, 1.0)
    assert costs_of(here, {True: Timed(1.0, 1.0)})["link_s_per_gb"] == 0  # noise is no gain


def test_a_plan_takes_the_link_that_was_measured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    replace(Costs.read(SHIPPED), link_gbit=3.5).write(tmp_path / "costs.json")
    measured = ["--costs", str(tmp_path / "costs.json")]
    for more, gbit in ((measured, 3.5), ([*measured, "--link", "25Gbit"], 25), ([], 10)):
        assert main(["--nodes", "1M", "--edges", "9M", "--dim", "8", *more, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["job"]["link_gbit"] == gbit


@pytest.mark.multiprocess
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_second_host_answers_until_it_is_told_to_stop(end: signal.Signals) -> None:
    command = [sys.executable, "-m", "gigl_loader", "plan", "--answer", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        where = process.stdout.readline().split()[-1]
        host, port = where.split(":")
        measure.meet(SecondHost(host, int(port), Security.local()))
        process.send_signal(end)
        assert process.wait(60) == 0


@pytest.mark.multiprocess
def test_the_second_host_may_be_told_to_stop_before_it_waits() -> None:
    # by a thread that libraries started: the system may give a signal to any
    script = """
import os, signal, sys, threading
from gigl_loader.commands.plan import main

told = threading.Event()
threading.Thread(target=told.wait, daemon=True).start()

class Output:
    def write(self, text):
        if text.startswith("answers"):
            os.kill(os.getpid(), signal.SIGTERM)

    def flush(self):
        pass

sys.stdout = Output()
raise SystemExit(main(["--answer", "127.0.0.1:0"]))
"""
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0
