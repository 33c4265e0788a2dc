"""What GiGL's suites use of the package ``parameterized``."""

import inspect
from collections.abc import Callable, Iterable
from functools import partialmethod
from typing import Any


class param:
    """Arguments of a case."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        self.args, self.keywords = args, keywords


class parameterized:
    """Its decorator."""

    @staticmethod
    def expand(cases: Iterable[Any], **_: Any) -> Callable[[Any], None]:
        """Add a method for each case to the class in whose body this is called."""

        def add(test: Any) -> None:
            frame = inspect.currentframe()
            assert frame is not None
            assert frame.f_back is not None
            for number, case in enumerate(cases):
                one = case if isinstance(case, param) else param(*case)
                name = f"{test.__name__}_{number}"
                frame.f_back.f_locals[name] = partialmethod(test, *one.args, **one.keywords)

        return add
