"""What a server remembers for a while, in bounded memory."""

from collections import OrderedDict
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Latest(OrderedDict[K, V]):
    """A dictionary that forgets what was added first.

    Args:
        most: Most entries to remember.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > self._most:
            self.popitem(last=False)  # one step: threads may add at a time
