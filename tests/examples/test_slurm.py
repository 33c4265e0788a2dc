"""The batch files for Slurm, with commands in Slurm's place that note what they are told."""

import importlib
import os
import subprocess
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

from gigl_loader.graph_store.serve import parse_serve
from gigl_loader.testing import wait_until

pytestmark = pytest.mark.multiprocess

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "examples" / "slurm"
COMMANDS = {
    # srun runs the command as the second of its tasks; as the real one does, it takes it along
    "srun": """while [[ $1 == --* ]]; do shift; done
        trap 'kill $child' TERM
        SLURM_PROCID=1 SLURM_NODEID=1 "$@" & child=$!
        wait $child""",
    "scontrol": 'printf "%s0\\n%s1\\n" "$3" "$3"',  # show hostnames NAME
    "gigl-loader": """[[ $1 == serve ]] || exec echo a-token
        echo "$GIGL_LOADER_CLUSTER_TOKEN" >$NOTES/token
        printf '%s\\n' $$ "$@" >$NOTES/serve.tmp; mv $NOTES/serve.tmp $NOTES/serve
        exec sleep 600""",
    # it trains once the servers are up, and fails
    "torchrun": """while [[ $WITH_SERVERS && ! -e $NOTES/serve ]]; do sleep 0.05; done
        printf '%s\\n' "$@" >$NOTES/torchrun
        exit 7""",
}
ENVIRONMENT = {
    "SLURM_JOB_ID": "4001",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "node",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "storage",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "compute",
    "SLURM_GPUS_PER_NODE": "a100:4",
    "SLURM_GPUS_PER_NODE_HET_GROUP_1": "4",
}


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A folder with the commands, which write into it what they are told."""
    for name, script in COMMANDS.items():
        command = tmp_path / name
        command.write_text(f"#!/usr/bin/env bash\n{script}\n")
        command.chmod(0o755)
    return tmp_path


def _submit(notes: Path, *argv: str, with_servers: str = "") -> "subprocess.Popen[bytes]":
    path = f"{notes}:{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", str(SLURM / argv[0]), *argv[1:]],
        env={"PATH": path, "NOTES": str(notes), "WITH_SERVERS": with_servers, **ENVIRONMENT},
    )


def _torchrun(notes: Path) -> tuple[Namespace, list[str]]:
    """Return torchrun's own options, and the arguments of the script."""
    words = (notes / "torchrun").read_text().splitlines()
    args = get_args_parser().parse_args(words)
    return args, args.training_script_args


def test_the_colocated_job(notes: Path) -> None:
    assert _submit(notes, "colocated.sbatch", "train.py", "--epochs=3").wait(200) == 7
    args, own = _torchrun(notes)
    assert (args.nnodes, args.nproc_per_node, args.rdzv_conf) == ("2", "4", "is_host=0")
    assert (args.rdzv_endpoint, args.training_script) == ("node0:20004", "train.py")
    assert own == ["--epochs=3"]


def test_the_graph_store_job_has_the_exit_code_of_the_training_and_ends_its_servers(
    notes: Path, monkeypatch: pytest.MonkeyPatch, command_line: Callable[..., None]
) -> None:
    script = "examples/graph_store/train.py"
    job = _submit(
        notes, "graph_store.sbatch", "/data/graph", script, "--epochs=3", with_servers="yes"
    )
    assert job.wait(200) == 7
    pid, verb, *words = (notes / "serve").read_text().splitlines()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the server has ended")
    assert verb == "serve"
    serve = parse_serve(words)
    assert (serve.rank, serve.num_servers, serve.num_jobs) == (1, 2, 1)
    assert (serve.root, serve.master_addr, serve.master_port) == ("/data/graph", "storage0", 20004)
    assert (notes / "token").read_text() == "a-token\n"

    args, own = _torchrun(notes)
    assert (args.nproc_per_node, args.rdzv_endpoint) == ("4", "compute0:20005")
    monkeypatch.syspath_prepend(str(ROOT / Path(script).parent))
    command_line(script, *own)
    train = importlib.import_module("train")
    where, training = train.parse_args()  # an option that it does not know ends the test
    assert (where.servers, where.storage_addr, where.rpc_port) == (2, "storage0", serve.master_port)
    assert (where.compute_addr, where.group_port) == ("compute0", 20006)
    assert training.epochs == 3
