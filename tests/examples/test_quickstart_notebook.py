from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from traitlets.config import Config

from tests.examples._run import EXAMPLES, number_after
from tests.support.scripts import ForkedPython

pytestmark = pytest.mark.multiprocess


def test_the_notebook_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jupyter_client.launcher.Popen", ForkedPython)  # the kernel
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    # a port may be taken meanwhile; a whole path, as the kernel runs in another folder
    sockets = Config(KernelManager={"transport": "ipc", "ip": str(tmp_path / "kernel")})
    NotebookClient(
        notebook,
        config=sockets,
        timeout=400,
        startup_timeout=400,
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    printed = "".join(
        output.get("text", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert "29 batches" in printed
    assert " of 359 nodes" in printed
    assert number_after("test accuracy: ", printed) > 0.9


def test_the_notebook_is_kept_without_outputs() -> None:
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.outputs for cell in notebook.cells if cell.cell_type == "code")
