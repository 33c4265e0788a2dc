import os
import signal
import subprocess
import sys
from multiprocessing import Pipe, parent_process
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch.distributed as dist

from gigl_loader.runtime.processes import ForkedProcess
from gigl_loader.testing import Footprint, RankFailed, run_ranks

pytestmark = pytest.mark.multiprocess


def _raise_on_rank_1(rank: int, size: int, text: str) -> None:
    if rank == 1:
        raise ValueError(text)
    dist.barrier()


def _kill_rank_1(rank: int, size: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if size == 2:
        dist.barrier()


def _wait_for_a_signal(rank: int, size: int) -> None:
    signal.pause()


def test_a_rank_that_raises_fails_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match=r"(?s)rank 1 ---.*_raise_on_rank_1.*ValueError: no luck"):
        run_ranks(_raise_on_rank_1, "no luck", world_size=2, tmp_path=tmp_path)


def test_a_killed_rank_fails_at_once_but_where_it_may_die(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match="rank 1: exit code -9"):
        run_ranks(_kill_rank_1, world_size=2, tmp_path=tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    run_ranks(_kill_rank_1, world_size=3, tmp_path=other, may_die=[1])


def test_ranks_end_at_the_time_limit(tmp_path: Path) -> None:
    before = set(Footprint.below().pids)
    with pytest.raises(RankFailed, match=r"still running after 0\.5 s: rank 0, rank 1"):
        run_ranks(_wait_for_a_signal, world_size=2, tmp_path=tmp_path, timeout=0.5)
    assert set(Footprint.below().alive()) <= before


def _tell(pipe: Connection) -> None:
    starter = parent_process()
    assert starter is not None
    seen = {name: os.environ.get(name) for name in ("SET_AFTER_THE_SERVER", "PATH")}
    pipe.send((os.getpid(), starter.pid, os.getcwd(), seen))
    signal.pause()


def test_a_forked_process_is_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the environment of now, though its server is older; its signal is seen."""
    monkeypatch.setenv("SET_AFTER_THE_SERVER", "yes")
    monkeypatch.delenv("PATH")
    ours, theirs = Pipe()
    process = ForkedProcess(target=_tell, args=(theirs,))
    process.start()
    try:
        assert ours.poll(60)
        environment = {"SET_AFTER_THE_SERVER": "yes", "PATH": None}
        assert ours.recv() == (process.pid, os.getpid(), os.getcwd(), environment)
    finally:
        process.terminate()
        process.join(60)
        ours.close()
        theirs.close()
    assert process.exitcode == -signal.SIGTERM


_SCRIPT = """
import sys
from gigl_loader.runtime import processes

processes.PRELOADED = ()  # the imports take their time, and change nothing here
process = processes.ForkedProcess(target=print)
process.start()
process.join()
print(process.exitcode, flush=True)
sys.stdin.readline()
"""


def test_the_fork_server_ends_with_who_started_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        assert process.stdout.readline() == "0\n"
        seen = Footprint.below(process.pid)
        assert len(seen.pids) >= 2, "the server, and multiprocessing's resource tracker"
        process.kill()
        process.stdin.close()
    seen.check_gone()
