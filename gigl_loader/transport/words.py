"""Text of another process, before it reaches a log or an error of this one.

A line break in it would forge a line of the log, an escape sequence would move the cursor of a
terminal, hide what was written or turn its direction.
"""

_MOST = 500
"""Characters of a line; the longest refusal of ours has some 300."""


def one_line(text: str, most: int = _MOST) -> str:
    """Return ``text`` in one line of printable characters, cut after ``most``."""
    # cut first: what is escaped is up to ten times as long
    return _escaped(text[:most], "") + ("..." if len(text) > most else "")


def readable(text: str) -> str:
    """Return ``text`` with its lines and tabs, as a traceback has them, and no other control."""
    return _escaped(text, "\n\t")


def _escaped(text: str, kept: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in kept else one.encode("unicode_escape").decode()
        for one in text
    )
