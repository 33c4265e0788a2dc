"""What workers tell of their process, importable by them."""

import importlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from numba.core.dispatcher import Dispatcher


def tell(file: str, number: int) -> None:
    """Write what this worker's process has from its trainer; for `partial`."""
    told = {
        "variable": os.environ.get("SET_BETWEEN_LOADERS"),
        "folder": os.getcwd(),
        "module": importlib.import_module("written_between_loaders").VALUE,
        "drawn": int(np.random.randint(2**31)),
        "errors": os.readlink("/proc/self/fd/2"),
    }
    Path(file).write_text(json.dumps(told))


def note_compiling(file: str, number: int) -> None:
    """Note each kernel of ours that this worker loads or compiles itself; for `partial`."""
    dispatchers: Any = Dispatcher
    compile_one = dispatchers.compile

    def noted(self: Any, signature: Any) -> Any:
        if self.py_func.__module__.startswith("gigl_loader."):
            with Path(file).open("a") as notes:
                notes.write(f"{self.py_func.__module__}.{self.py_func.__name__}{signature}\n")
        return compile_one(self, signature)

    dispatchers.compile = noted
