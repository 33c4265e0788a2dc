"""Guides are easy to read: sentences are short, as `docs/words.py` counts them."""

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
MEAN = 20
"""Mean number of words that a page's sentences stay below."""
LONGEST = 30
"""Most words of one sentence."""


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


@pytest.mark.parametrize("page", GUIDES)
def test_a_guide_is_easy_to_read(page: str, words: ModuleType) -> None:
    found = words.count((DOCS.parent / page).read_text())
    assert found.mean < MEAN, f"mean sentence of {found.mean:.1f} words"
    assert found.longest <= LONGEST, f"{found.longest} words: {found.longest_sentence}"


def test_the_readme_is_read_in_a_minute() -> None:
    assert len((DOCS.parent / "README.md").read_text().splitlines()) <= 60
