"""Run a command, end as it ends, and print how long it took.

    python .ci/timed.py WHERE COMMAND...

WHERE is told with the time. Signals that are meant for the command reach it: those of a terminal go
to both, and others are passed on.
"""

import os
import signal
import subprocess
import sys
import time

PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main(where: str, *command: str) -> int:
    """Return the command's exit code; where a signal ended it, end by the same."""
    began = time.monotonic()
    early: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _: object) -> None:
        # a signal may come before there is a process
        if process is None:
            early.append(number)
        else:
            process.send_signal(number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    # Ctrl-C and Ctrl-\ go to all processes of the terminal: this one only waits
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, lambda *_: None)
    try:
        process = subprocess.Popen(command)
    except OSError as error:
        print(f"in-venv: {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    for number in early:
        process.send_signal(number)
    code = process.wait()
    took = time.monotonic() - began
    print(f"in-venv: {os.path.basename(command[0])} in {where}: {took:.1f} s", file=sys.stderr)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
