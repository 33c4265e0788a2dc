"""Figures as people write them: what `gigl-loader plan` takes on its command line."""

import re
from argparse import ArgumentTypeError

from gigl_loader.errors import ConfigError
from gigl_loader.sizes import NUMBER, number_in, parse_size

_COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
# In 10**9: without a letter a number is in those, as --help has it, but for nodes and edges.
_GIGABITS = {"k": 1e-6, "m": 1e-3, "": 1.0, "g": 1.0, "t": 1e3}


def count(text: str) -> float:
    """Return a number of nodes or edges, as in ``111M``, ``1.6B``, ``1e9`` or ``111,000,000``."""
    found = re.fullmatch(rf"{NUMBER}([kmbgt]?)\s*", text.lower())
    if found is None or number_in(found[1]) == 0:
        raise ArgumentTypeError(f"a number is above 0, as in 111M, 1.6B, 1e9 or 5000, got {text!r}")
    return round(number_in(found[1]) * _COUNTS[found[2]])


def gigabits(text: str) -> float:
    """Return the 10**9 bits per second of a link, as in ``25Gbit`` or ``100Mbit``."""
    found = re.fullmatch(rf"{NUMBER}([kmgtKMGT]?)(bit|bps|b)?(/s)?\s*", text)
    if found is not None and number_in(found[1]) > 0:
        return number_in(found[1]) * _GIGABITS[found[2].lower()]
    # "GB" is what machines' memory is sold in and links are not: eight times off in silence. "Gb"
    # is right, so case counts here and nowhere else.
    if re.fullmatch(rf"{NUMBER}[kmgtKMGT]?B(/s|ps)?\s*", text):
        raise ArgumentTypeError(
            f"a link is given in bits, not bytes: 8 times as many, as in 25Gbit, got {text!r}"
        )
    raise ArgumentTypeError(f"a link is as in 25Gbit or 500Mbit, got {text!r}")


def gigabytes(text: str) -> float:
    """Return 10**9 bytes, as in ``64``, ``64GB`` or ``1.5TB``; of ``64GiB``, which are 2**30."""
    # a bare number is in GB here, as --help says
    return _size(f"{text}GB" if re.fullmatch(NUMBER, text) else text, "memory") / 1e9


def _size(text: str, what: str, also: str = "") -> int:
    try:
        return parse_size(text, what, also=also)
    except ConfigError as error:
        raise ArgumentTypeError(str(error)) from error


def share(text: str) -> float:
    """Return a share, as in ``20%`` or ``0.2``."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*(%?)\s*", text)
    value = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= value <= 1:
        raise ArgumentTypeError(f"a share is 0 to 1, as in 20% or 0.2, got {text!r}")
    return value


def cache_size(text: str) -> int | float:
    """Return bytes of a cache, as in ``2GB``, which are those of ``remote_cache``; or a share."""
    # "2" is no share and "0.2" no bytes: only a unit tells which one is meant.
    if not re.search(r"[bB]\s*$", text):
        return share(text)
    return _size(text, "a cache", ', or a share such as "20%"')


def fanouts(text: str) -> tuple[int, ...]:
    """Return neighbours per hop, as in ``15,10``; ``all``, or -1, takes all of them."""
    try:
        return tuple(-1 if one.strip() == "all" else int(one) for one in text.split(","))
    except ValueError:
        raise ArgumentTypeError(f"fanouts are as in 15,10 or all,10, got {text!r}") from None
