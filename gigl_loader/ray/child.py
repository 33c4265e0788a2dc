"""`gigl-loader serve` as a child that never outlives its parent.

Run as ``python -m gigl_loader.ray.child PID ARGUMENT...``, with the parent's pid.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def main(argv: Sequence[str]) -> int:
    """Serve by ``argv[1:]`` for the parent ``argv[0]``; return the exit code.

    SIGKILL, not SIGTERM: a server that is told to end says goodbye for good, and this one is about
    to be started again.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(argv[0]):  # the parent went before the line above
        return 1
    from gigl_loader.commands.serve import serve_main  # takes seconds: only after the lines above

    return serve_main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
