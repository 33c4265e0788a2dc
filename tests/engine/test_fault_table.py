"""The fault table in the docs names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent
PAGE = TESTS.parent / "docs" / "guide" / "faults.md"


def test_every_row_names_its_test() -> None:
    file, checked = "", 0
    for row in PAGE.read_text().splitlines():
        if not row.startswith("|") or row.startswith(("| fault", "| ---", "| the trainer |")):
            continue
        names = re.findall(r"`(\.\.\.\[[^`]+\]|[a-z_/]*\.py|[a-z_/.]*::[^`]+)`", row)
        assert names, row
        for name in names:
            path, _, test = name.partition("::")
            file = path if path.endswith(".py") else file
            source = (TESTS / file).read_text()
            function, _, case = test.partition("[")
            assert not function or f"def {function}(" in source, name
            case = case or name.partition("[")[2]
            assert f'"{case.rstrip("]")}"' in source or not case, name
            checked += 1
    assert checked > 25
