"""Each message that the page "Troubleshooting by message" quotes is one of the package's."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guide/troubleshooting.md").read_text()
FILLED_IN = "\0"  # stands for what a message gets when it is made


def quoted() -> list[str]:
    """Return the messages in the first column of the tables."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])]


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else FILLED_IN
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left) + _text(node.right)
    return FILLED_IN


@pytest.fixture(scope="module")
def texts() -> set[str]:
    """Return all strings of the package."""
    kinds = (ast.Constant, ast.JoinedStr, ast.BinOp)
    found = {
        _text(node)
        for file in (ROOT / "gigl_loader").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, kinds)
    }
    return {re.sub(r"%[.\d]*[sdrf]", FILLED_IN, text) for text in found}


def _has(text: str, parts: list[str]) -> bool:
    """Tell whether the parts stand in a text, in this order."""
    at = 0
    for part in parts:
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return True


@pytest.mark.parametrize("message", quoted())
def test_a_quoted_message_is_still_made(message: str, texts: set[str]) -> None:
    parts = [part.strip() for part in message.split("...")]
    assert any(_has(text, parts) for text in texts), message


def test_enough_is_quoted() -> None:
    assert len(quoted()) > 50
