"""Test modules, imported once for all processes that run tests: those are forked afterwards.

What pytest collects is thrown away: each process collects again, and finds the modules imported.
"""

import contextlib
import io
import json
import os

import pytest

VARIABLE = "GIGL_LOADER_TESTS_COLLECT"
"""Set to the words of pytest's command line, as JSON, where this module is imported."""

_words = json.loads(os.environ.pop(VARIABLE))
with contextlib.redirect_stdout(io.StringIO()):  # errors, too: each process finds them again
    pytest.main([*_words, "-n0", "--collect-only", "-qqq"])
