"""Options of a loader are fixed once it is built: setting one as an attribute is refused.

Workers, servers and the order of seeds were made from the constructor's arguments, so that an
assignment would change what the loader says of itself and nothing else.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from gigl_loader.errors import UsageError
from gigl_loader.loader.foreign_attributes import HOOKS, OVERRIDES
from gigl_loader.loader.options.signatures import KEYWORDS
from gigl_loader.loader.seed_class_attributes import OF_CONFIG

_SET_HERE = frozenset(
    (*OF_CONFIG, "data", "input_data", "sampling_config", "to_device", "worker_options")
)
"""Options that loaders have as attributes, as GLT's class does."""
_ARGUMENTS = (
    "dataset",
    "epoch",
    "num_neighbors",
    "input_nodes",
    "input_time",
    "edge_label_index",
    "edge_label",
    "edge_label_time",
    "neg_sampling",
    "neg_sampling_ratio",
    "strict",
    "supervision_edge_type",
    "use_label_edge_index_output",
    "exclude_supervision",
)
"""Arguments of some loaders, and what else their users might set."""
FIXED = frozenset((*KEYWORDS, *_SET_HERE, *_ARGUMENTS, *OVERRIDES))
"""Names that cannot be set on a loader that is built."""
_BUILDING = "_is_being_built"
"""Attribute: True within constructors, of subclasses too; False once the outermost has ended."""
_MARK = "marks_the_end"


class FixedOptions:
    """A base of `BaseDistLoader`, whose instances refuse new values of options once built."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        # A constructor that was inherited has the mark, but for that of a mixin which comes first.
        constructor: Any = cls.__init__
        if not hasattr(constructor, _MARK):
            type.__setattr__(cls, "__init__", _marking_the_end(constructor))

    def _end_of_building(self) -> None:
        """Fix the options, if no subclass's constructor is under way."""
        vars(self).setdefault(_BUILDING, False)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in FIXED and vars(self).get(_BUILDING) is False and not self._is_own(name):
            kind = type(self).__name__
            raise UsageError(
                f"{kind}.{name} cannot be set: it would change nothing, as workers, seeds and "
                f"batches come from what the constructor was given. {_advice(name)}"
            )
        super().__setattr__(name, value)

    def _is_own(self, name: str) -> bool:
        """Return whether an attribute is a subclass's, which declared it or set it when built."""
        kinds = type(self).__mro__
        declared = any(name in vars(kind) for kind in kinds[: kinds.index(_base_of(kinds))])
        return declared or (name in vars(self) and name not in _SET_HERE)


def _base_of(kinds: tuple[type, ...]) -> type:
    """Return `BaseDistLoader`, of the classes of a loader: the one that has our base as its own."""
    return next(kind for kind in kinds if FixedOptions in kind.__bases__)


def _marking_the_end(constructor: Callable[..., None]) -> Callable[..., None]:
    """Return a constructor that fixes the options when it, as the outermost, has ended."""

    @wraps(constructor)
    def init(self: Any, *args: Any, **keywords: Any) -> None:
        if vars(self).get(_BUILDING):  # a subclass's constructor is under way, and will end later
            constructor(self, *args, **keywords)
            return
        vars(self)[_BUILDING] = True
        try:
            constructor(self, *args, **keywords)
        finally:
            vars(self)[_BUILDING] = False

    setattr(init, _MARK, True)
    return init


def _advice(name: str) -> str:
    if name == "epoch":
        return "set_epoch() says which epoch the next iter() starts"
    if name in OVERRIDES:
        return f"To change batches, {HOOKS}"
    return (
        "Build another loader with the other value, after shutdown() of this one; a value of your "
        "own needs another name"
    )
