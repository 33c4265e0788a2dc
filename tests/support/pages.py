"""The code on a page: blocks fenced with `python`, which run in order, in one namespace.

Code that is shown but cannot run here (that of other libraries) is fenced with `py`.
"""

import re

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[str]:
    """Return each block with empty lines before it, so that tracebacks name lines of the page."""
    return ["\n" * text[: one.start(1)].count("\n") + one[1] for one in _BLOCK.finditer(text)]


def script(text: str) -> str:
    """Return all blocks as one script whose lines have the numbers that they have on the page."""
    lines: list[str] = []
    for block in blocks(text):
        lines += block.splitlines()[len(lines) :]
    return "\n".join(lines) + "\n"
