"""A service at low limits, for `test_listener`: prints its port, then its state once a second."""

import resource
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.runtime.transport.service import SECURITIES, Service

SPARE_THREADS = 8


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def limit_threads(most: int) -> None:
    """Let this process start ``most`` threads; a limit of the kernel does not bind root."""
    start, lock = threading.Thread.start, threading.Lock()

    def start_or_refuse(thread: threading.Thread) -> None:
        with lock:
            if threading.active_count() >= most:
                raise RuntimeError("can't start new thread")
            start(thread)

    threading.Thread.start = start_or_refuse  # type: ignore[assignment]  # put in a method's place


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]), int(sys.argv[2])))
    limit_threads(int(sys.argv[3]))
    service = Service(SECURITIES[sys.argv[1]]())
    print(service.listener.address[1], flush=True)
    for _ in sys.stdin:
        stats = service.listener.stats()
        print(rss_bytes(), stats["pending"], len(list(Path("/proc/self/fd").iterdir())), flush=True)
        time.sleep(0.01)
