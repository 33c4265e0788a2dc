"""Run tests of one of GiGL's suites; print a line of JSON: how each of them ended."""

import json
import signal
import sys
import unittest
from typing import Any

LIMIT_S = 300


class _Result(unittest.TestResult):
    """Keeps a word for each test."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        signal.alarm(LIMIT_S)

    def stopTest(self, test: Any) -> None:
        signal.alarm(0)
        name = ".".join(test.id().split(".")[-2:])
        ended = [one for one, _ in (*self.failures, *self.errors)]
        bad = any(one is test or getattr(one, "test_case", None) is test for one in ended)
        skipped = any(one is test for one, _ in self.skipped)
        self.found[name] = "failed" if bad else "skipped" if skipped else "passed"
        super().stopTest(test)


def _late(*_: Any) -> None:
    raise TimeoutError(f"not done after {LIMIT_S} s")


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, _late)
    result = _Result()
    unittest.defaultTestLoader.loadTestsFromName(sys.argv[1]).run(result)
    for test, text in (*result.failures, *result.errors):
        print(f"{test.id()}\n{text}", file=sys.stderr)
    print(json.dumps(result.found))
