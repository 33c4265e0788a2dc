"""Print the number of words of each public page, and its mean and longest sentence.

python docs/words.py [PAGE ...]

It is a report: long sentences get a mark, and nothing fails. Prose is counted; headings, code,
tables and pictures are not. A piece of code within a sentence is one word, a link is its text, and
the end of a list item ends its last sentence.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
MEAN, LONGEST = 20, 30
"""Words of a mean and of a single sentence, above which the report has a mark."""
NOT_PUBLIC = ("decisions", "_build")
"""Folders of docs/ that speak to those who change the package."""

_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2[^\n]*$", re.MULTILINE | re.DOTALL)
_TAG = re.compile(r"<!--.*?-->|</?\w[^>]*>", re.DOTALL)
_IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"(?:\{[\w:]+\})?(`+).+?\1", re.DOTALL)
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+\.)\s+")
_NO_PROSE = re.compile(r"^\s*(?:\||#|:::|:\w+:|\(\w+\)=)")
_END = re.compile(r"[.!?][)\"'*_]*(?=\s|$)")
_WORD = re.compile(r"\w[\w'’.,/%+-]*")  # noqa: RUF001 (the pages may use it)


class Page(NamedTuple):
    """Counts of one page."""

    words: int
    """Words in sentences."""
    with_tables: int
    """Words in sentences and in tables."""
    mean: float
    """Words of a sentence, on average; 0 where there is none."""
    longest: int
    longest_sentence: str


def sentences(text: str) -> list[str]:
    """Return the sentences of a page in Markdown; without headings, code, tables and pictures."""
    blocks: list[list[str]] = [[]]
    for line in _FENCE.sub("\n", text).splitlines():
        if not line.strip() or _NO_PROSE.match(line):
            blocks.append([])
        elif _ITEM.match(line):
            blocks.append([_ITEM.sub("", line)])
        else:
            blocks[-1].append(line.strip().removeprefix("> "))
    found = []
    for block in blocks:
        found += _END.sub("\\g<0>\n", _words_only(" ".join(block))).split("\n")
    return [sentence.strip() for sentence in found if _WORD.search(sentence)]


def _words_only(text: str) -> str:
    """Return a paragraph with each piece of code as one word, and links as their texts."""
    text = _CODE.sub("code", text)  # first, as code may look like a tag
    return _LINK.sub(r"\1", _IMAGE.sub("", _TAG.sub("", text)))


def count(text: str) -> Page:
    """Count the words of a page's prose."""
    by_length = [(len(_WORD.findall(sentence)), sentence) for sentence in sentences(text)]
    words = sum(length for length, _ in by_length)
    table = re.findall(r"^ *\|.*$", _FENCE.sub("\n", text), re.MULTILINE)
    in_tables = sum(len(_WORD.findall(_words_only(line))) for line in table)
    longest, sentence = max(by_length, default=(0, ""))
    return Page(words, words + in_tables, words / max(len(by_length), 1), longest, sentence)


def pages() -> list[Path]:
    """Return the public pages: the README and the site, without what is for maintainers."""
    docs = ROOT / "docs"
    found = [
        page
        for page in sorted(docs.rglob("*.md"))
        if page.relative_to(docs).parts[0] not in NOT_PUBLIC
    ]
    return [ROOT / "README.md", *found]


def main(names: Sequence[str]) -> None:
    """Print a line for each page, and the longest sentence of those that were named."""
    print(f"{'words':>6} {'+tables':>7} {'mean':>5} {'longest':>7}")
    for page in [Path(name).resolve() for name in names] or pages():
        found = count(page.read_text())
        counts = f"{found.words:6,} {found.with_tables:7,} {found.mean:5.1f} {found.longest:7}"
        name = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
        marks = [f"mean above {MEAN}"] if found.mean > MEAN else []
        marks += [f"a sentence above {LONGEST}"] if found.longest > LONGEST else []
        print(f"{counts} {name}" + ("  <- " + ", ".join(marks) if marks else ""))
        if names:
            print(f"       {found.longest_sentence}")


if __name__ == "__main__":
    main(sys.argv[1:])
