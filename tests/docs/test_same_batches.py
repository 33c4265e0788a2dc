"""The page "The same batches everywhere" holds what its command prints."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "guide" / "same_batches.md"


@pytest.mark.multiprocess
def test_the_table_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import same_batches

    found = list(same_batches.table())
    assert "\n".join(found) + "\n" in PAGE.read_text()
    for column in zip(*(line.split(" | ")[1:] for line in found[2:]), strict=True):
        assert len({cell.strip(" |") for cell in column}) == 1
    sys.modules.pop("same_batches")
