"""`docs/words.py` counts sentences; what it finds is a report, and fails no page."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"
NO_GUIDES = ("api", "decisions", "_build", "architecture.md", "changelog.md")
"""Lists, and pages for those who change the package."""
GUIDES = sorted(
    str(page.relative_to(DOCS.parent))
    for page in (DOCS.parent / "README.md", *DOCS.rglob("*.md"))
    if not set(page.relative_to(DOCS.parent).parts) & set(NO_GUIDES)
)


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(DOCS))
    import words

    yield words
    sys.modules.pop("words")


def test_sentences_of_a_page(words: ModuleType) -> None:
    text = """# A title is left out. Really.

One sentence, with `code(1, 2)` and
[a link. Or two](page.md). Another one?

| a table | is left out |

- the item ends without a stop
- so does this. But not this

```python
code = "is left out"
```

:::{note}
What a note says counts.
:::
![a picture](does_not.png)
"""
    assert words.sentences(text) == [
        "One sentence, with code and a link.",
        "Or two.",
        "Another one?",
        "the item ends without a stop",
        "so does this.",
        "But not this",
        "What a note says counts.",
    ]
    found = words.count(text)
    assert (found.words, found.with_tables, found.longest) == (28, 33, 7)
    assert found.mean == 4.0
    assert words.count("# Nothing but a title\n") == (0, 0, 0.0, 0, "")


def test_long_sentences_are_reported_and_fail_nothing(
    words: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short, long = tmp_path / "short.md", tmp_path / "long.md"
    short.write_text("Few words. And as few.\n")
    long.write_text("One " + "and one " * 20 + "more.\n")
    assert words.main([str(short), str(long)]) is None  # no exit status
    of_short, _, of_long, sentence = capsys.readouterr().out.splitlines()[1:]
    assert "long" not in of_short.removesuffix(str(short))
    assert of_long.endswith("long.md  <- mean above 20, a sentence above 30")
    assert sentence.split()[:3] == ["One", "and", "one"]


def test_a_report_of_all_guides_can_be_made(
    words: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    words.main([])
    printed = capsys.readouterr().out
    for page in GUIDES:
        assert f" {page}" in printed


def test_the_readme_is_read_in_two_minutes() -> None:
    assert len((DOCS.parent / "README.md").read_text().splitlines()) <= 110
