"""Run a script or a module as ``python`` does, for one job of chaos.

``_chaos_start.py FOLDER NAME=VALUE... -- (SCRIPT | -m MODULE) ARGUMENT...``: it runs in the folder,
by which all processes of a job are found, with these variables of the environment, and on SIGABRT
writes where its threads are.
"""

import faulthandler
import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    folder, *words = sys.argv[1:]
    at = words.index("--")
    os.chdir(folder)
    os.environ.update(dict(word.split("=", 1) for word in words[:at]))
    faulthandler.enable()
    first, *rest = words[at + 1 :]
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(first).parent))
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


main()
