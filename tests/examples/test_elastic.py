"""torchrun's elastic restarts: a rank is killed, its machine is gone; the batches stay the same."""

import base64
import json
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from gigl_loader import DistDataset
from gigl_loader.testing import batch_digest, one_rank, wait_until
from tests.examples._run import EXAMPLES, environment
from tests.support.scripts import ForkedPython

pytestmark = pytest.mark.multiprocess

BATCH_SIZE, EPOCHS = 64, 2
_STATE = "torch.rendezvous.job"


def _torchrun(folder: Path, port: int, output: Any, *, stays: bool) -> ForkedPython:
    """Be one machine of a job of one or two; each has one rank."""
    # By these times nobody is lost, and nobody goes on alone, however busy the machine is: the test
    # says when (`_lose` and `_close_last_call`).
    conf = "is_host=0,keep_alive_interval=10,keep_alive_max_attempt=60,last_call_timeout=600"
    faults = [] if stays else ["--kill-node-at=4"]
    return ForkedPython(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes=1:2",
            "--nproc-per-node=1",
            "--max-restarts=5",
            "--monitor-interval=0.2",
            "--rdzv-backend=c10d",
            "--rdzv-id=job",
            f"--rdzv-endpoint=127.0.0.1:{port}",
            "--local-addr=127.0.0.1",
            f"--rdzv-conf={conf}",
            str(EXAMPLES / "elastic.py"),
            f"--checkpoint={folder}/elastic.pt",
            f"--record={folder}",
            f"--batch-size={BATCH_SIZE}",
            f"--epochs={EPOCHS}",
            "--save-every=2",
            *faults,
        ],
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment(),
    )


def _undisturbed(folder: Path) -> list[list[str]]:
    """Return the digests by epoch, of one rank alone."""
    import elastic
    from _data import digits

    with one_rank(folder):
        dataset = DistDataset.from_pyg(digits())
        with elastic.make_loader(dataset, BATCH_SIZE, num_workers=0) as loader:
            return [list(map(batch_digest, loader)) for _ in range(EPOCHS)]


def _changed(meeting: TCPStore, change: Callable[[Any], bool]) -> bool:
    """Change the state of torchrun's rendezvous, unless ``change`` returns False."""
    while meeting.check([_STATE]):
        known = meeting.get(_STATE).decode()
        if known == C10dRendezvousBackend._NULL_SENTINEL:
            return False
        state = pickle.loads(base64.b64decode(known))
        if not change(state):
            return False
        new = base64.b64encode(pickle.dumps(state)).decode()
        # the machines write to it, too
        if meeting.compare_set(_STATE, known, new).decode() == new:
            return True
    return False


def _lose(state: Any, node: Any) -> bool:
    """Let the heartbeat of a machine be too old: the next one to look removes it."""
    state.last_heartbeats[node] = datetime.fromtimestamp(0, UTC)
    return True


def _close_last_call(state: Any) -> bool:
    """Let a machine that waits for others go on alone."""
    if state.complete or len(state.participants) != 1:
        return False
    state.deadline = datetime.fromtimestamp(0, UTC)
    return True


def _have_come(meeting: TCPStore, come: list[Any]) -> bool:
    """Whether machines are in the rendezvous, which are added to ``come``."""

    def look(state: Any) -> bool:
        come.extend(state.participants)
        return False

    _changed(meeting, look)
    return bool(come)


def _train(log: Path, printed: Path) -> None:
    """Let two machines train, of which one is lost; the other one goes on alone."""
    log.mkdir(parents=True)
    meeting = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with printed.open("w") as output:
        machines = [_torchrun(log, meeting.port, output, stays=False)]
        try:
            come: list[Any] = []
            wait_until(lambda: _have_come(meeting, come), "one has come", 300)
            machines.append(_torchrun(log, meeting.port, output, stays=True))
            machines[0].wait(timeout=300)
            _changed(meeting, partial(_lose, node=come[0]))
            wait_until(
                lambda: machines[1].poll() is not None or _changed(meeting, _close_last_call),
                "the other one is alone",
                300,
            )
            machines[1].wait(timeout=300)
            assert machines[1].returncode == 0, printed.read_text()[-4000:]
        finally:
            for machine in machines:
                machine.kill()
                machine.wait()


@pytest.mark.timeout(900)  # each of three waits has 300 s
@pytest.mark.longest
def test_a_machine_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    printed, log = tmp_path / "printed.txt", tmp_path / "log"
    _train(log, printed)
    files = [file.read_text().splitlines() for file in log.glob("*.jsonl")]
    lines = [json.loads(line) for file in files for line in file]
    assert "goes on after" in printed.read_text()
    for epoch, expected in enumerate(_undisturbed(tmp_path)):
        taken = Counter(line["digest"] for line in lines if line["epoch"] == epoch)
        assert taken.keys() == set(expected), f"epoch {epoch}"
    assert {line["ranks"] for line in lines} == {1, 2}
    assert (log / "killed2").exists()
