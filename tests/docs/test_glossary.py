"""The glossary: few words, each explained shortly, and no other words for the same things."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
GLOSSARY = DOCS / "glossary.md"
PAGES = sorted(
    page
    for folder in ("", "guide", "api")
    for page in (DOCS / folder).glob("*.md")
    if page.name not in ("changelog.md", "architecture.md")
)
INSTEAD = {
    r"twins?": "replica",
    r"throw-away": "self-signed",
    r"foretold|foretells?": "predicted",
    r"reckon(s|ed)?": "assume, predict",
    r"over there": "on the remote machine",
    r"made anew": "recreated",
    r"who may (ask|come in)": "authentication",
    r"a trained link": "a training edge",
}
"""Words of this project's own that were used before the field's."""


def test_it_has_few_words_and_says_them_shortly() -> None:
    entries = re.findall(r"^\*\*(.+)\*\*\n: (.+)$", GLOSSARY.read_text(), re.MULTILINE)
    assert 40 <= len(entries) <= 60
    words = [word.lower() for word, _ in entries]
    assert len(set(words)) == len(words)
    for word, meaning in entries:
        sentences = re.findall(r"[.!?](?= |$)", meaning.replace("torch.distributed", ""))
        assert 1 <= len(sentences) <= 3, word
        assert len(meaning) < 220, word


def test_it_is_linked() -> None:
    assert "\nglossary\n" in (DOCS / "index.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_have_one_word_for_one_thing(page: Path) -> None:
    # names of tests and of options are in backquotes
    text = re.sub(r"`[^`\n]*`", "", page.read_text())
    found = {word: re.findall(rf"\b(?:{word})\b", text, re.IGNORECASE) for word in INSTEAD}
    assert not any(found.values()), {
        word: INSTEAD[word] for word, places in found.items() if places
    }
