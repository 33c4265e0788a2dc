"""Sizes in bytes as people write them: one meaning of ``GB`` for all keywords and commands."""

import re
from typing import Any

from gigl_loader.errors import ConfigError

NUMBER = r"\s*(\d[\d_,]*(?:\.\d+)?(?:[eE]\+?\d{1,2})?)\s*"
"""At most two digits of an exponent: 1e999 would be infinite. Commas and underscores are allowed,
as in pasted numbers."""
_SIZE = re.compile(rf"{NUMBER}([kmgt]?)(i?)b?\s*")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
FORMS = (
    'bytes above 0, or a string such as "4GB" (4 * 10**9) or "4GiB" (4 * 2**30), in B, KB, MB, GB, '
    "TB, KiB, MiB, GiB or TiB"
)


def read_number(text: str) -> float:
    """Return the number in a match of `NUMBER`."""
    return float(text.replace(",", "").replace("_", ""))


def parse_size(size: Any, keyword: str, *, also: str = "") -> int:
    """Return a number of bytes: of ``"4GB"``, ``"512MiB"``, ``"4e9"``, or an int.

    Args:
        size: The user's value.
        keyword: Its keyword, for errors.
        also: Other values that the keyword accepts, for errors.

    Raises:
        ConfigError: It cannot be read, or is not positive.
    """
    nbytes = size if isinstance(size, int) and not isinstance(size, bool) else 0
    match = _SIZE.fullmatch(size.lower()) if isinstance(size, str) else None
    if match is not None and (match[2] or not match[3]):
        unit = (1024 if match[3] else 1000) ** _POWERS[match[2]]
        nbytes = int(read_number(match[1]) * unit)
    if nbytes <= 0:
        raise ConfigError(f"{keyword} must be {FORMS}{also}; got {size!r}")
    return nbytes


def size_in_words(nbytes: int) -> str:
    """Return a size with three digits and a unit, as `parse_size` reads it."""
    for name, unit in (("GB", 10**9), ("MB", 10**6)):
        # 999.7 MB with three digits would be 1e+03 MB
        if nbytes >= 0.9995 * unit:
            return f"{nbytes / unit:.3g} {name}"
    return f"{nbytes} bytes"
