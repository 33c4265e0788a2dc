"""Run a script or a module as ``python`` does, for one job of chaos.

``_chaos_start.py FOLDER NAMESPACE NAME=VALUE... -- (SCRIPT | -m MODULE) ARGUMENT...``: it runs in
the folder, by which all processes of a job are found, in the network namespace ("-": in this one),
with these variables of the environment, and on SIGABRT writes where its threads are.
"""

import ctypes
import faulthandler
import os
import runpy
import sys
from pathlib import Path

_CLONE_NEWNET = 0x40000000  # of linux/sched.h; `os.setns` came with Python 3.12


def enter(namespace: str) -> None:
    """Go to a network namespace that `ip netns` has made."""
    libc = ctypes.CDLL(None, use_errno=True)
    with Path("/run/netns", namespace).open() as file:
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")
    # what starts supervisors quickly was forked before, and is on the other side
    zygote = sys.modules.get("tests.support.zygote")
    if zygote is not None:
        zygote.fork_zygote()


def main() -> None:
    folder, namespace, *words = sys.argv[1:]
    at = words.index("--")
    os.chdir(folder)
    if namespace != "-":
        enter(namespace)
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
