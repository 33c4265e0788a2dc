"""What this package makes is where it says, whatever `torch.set_default_device` says."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import gigl_loader
from tests.loader.test_digests import KNOWN
from tests.support.scripts import run_python

PACKAGE = Path(gigl_loader.__file__).parent
FACTORIES = """
    arange as_tensor asarray empty empty_permuted empty_strided eye full linspace logspace ones rand
    randint randn randperm range scalar_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor
    tensor tril_indices triu_indices zeros
"""
"""Functions of torch that make a tensor on the default device, if they are given none.

Others take the device of a tensor that they are given, or always the CPU: `torch.from_numpy`,
`torch.frombuffer`, `torch.load`, `torch.Generator`.
"""


def calls_without_device(source: str) -> list[tuple[int, str]]:
    """Return line and name of each call of a function of torch that makes a tensor anywhere."""
    return [
        (node.lineno, node.func.attr)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "torch"
        and node.func.attr in FACTORIES.split()
        and "device" not in {keyword.arg for keyword in node.keywords}
    ]


def test_each_new_tensor_has_a_device_by_name() -> None:
    found = [
        f"{file.relative_to(PACKAGE)}:{line}: torch.{name}() names no device"
        for file in sorted(PACKAGE.rglob("*.py"))
        for line, name in calls_without_device(file.read_text())
    ]
    assert found == []


def test_the_rule_sees_a_call() -> None:
    source = "torch.arange(3)\ntorch.arange(3, device=x.device)\nx.new_empty(3)\ntorch.cat([x])"
    assert calls_without_device(source) == [(1, "arange")]


@pytest.mark.multiprocess
def test_the_same_bits_with_a_default_device_without_memory(tmp_path: Path) -> None:
    found: dict[str, Any] = {}
    for device in ("cpu", "meta"):
        (tmp_path / device).mkdir()
        job = run_python("-m", "tests.default_device_jobs", device, str(tmp_path / device))
        assert job.returncode == 0, job.stderr
        found[device] = json.loads(job.stdout)
    assert found["meta"] == found["cpu"]
    for name, digest in KNOWN.items():
        assert found["meta"][f"{name}, 0 workers"] == digest, name
