"""How many examples property-based tests draw: `make test` a quarter of those of `test-all`."""

from hypothesis import settings

ALL = 100
"""Examples of a test that does not say, in the profile that draws all."""


def examples(count: int) -> int:
    """Return how many of ``count`` examples the profile draws that is loaded: see conftest.py."""
    return max(1, count * settings().max_examples // ALL)
