"""The keywords of all loaders: type, default and meaning of each, declared once.

A new one is an entry of `LoaderKeywords`, and is then there for every loader: type checkers read it
there (PEP 692), and `with_keywords` puts it into signature and docstring of each loader, for
``help()`` and the documentation. Its value is in ``LoaderArgs.given``.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import wraps
from itertools import pairwise
from typing import Annotated, Any, TypedDict, TypeVar, get_args, get_type_hints

import torch

from gigl_loader.loader.foreign import understood
from gigl_loader.loader.runtime import DistributedContext
from gigl_loader.options import (
    DEFAULT_MAX_RESTARTS,
    DEFAULT_RECONNECT_S,
    DEFAULT_TIMEOUT_S,
    ExpansionKeywords,
    ExpansionOptions,
    FeatureStoreOptions,
    SamplerOptions,
)

L = TypeVar("L", bound=type)

_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
"""A parameter in a docstring, and its text with the lines that are indented below it."""


class LoaderKeywords(ExpansionKeywords, total=False):
    """What all loaders take by keyword only: ``Annotated[type, default]``, and what it means."""

    seed: Annotated[int | None, None]
    """Decides shuffle and draws. None: drawn once, and logged."""
    replace: Annotated[bool, False]
    """Draw neighbours with replacement."""
    in_order: Annotated[bool, True]
    """Yield batches in order. False trades order for latency."""
    timeout: Annotated[float, DEFAULT_TIMEOUT_S]
    """Seconds without progress before a wait is an error."""
    max_restarts: Annotated[int, DEFAULT_MAX_RESTARTS]
    """Workers that are replaced in an epoch when they die, or make no progress for ``timeout``; the
    batches stay the same. 0: the first one lost is an error."""
    reconnect_timeout: Annotated[float, DEFAULT_RECONNECT_S]
    """Graph store: seconds that a storage server may be away, killed and started again or out of
    reach; the batches stay the same. 0: that is an error at once."""
    worker_init_fn: Annotated[Callable[[int], None] | None, None]
    """Called with the worker's number in each worker before it samples."""
    even_ranks: Annotated[str | None, None]
    """``"drop"`` or ``"wrap"``: all ranks take the same number of steps."""
    with_edge: Annotated[bool | None, None]
    """Deliver edge ids. None: where there are edge features."""
    device_prefetch: Annotated[int, 2]
    """Batches copied ahead to a CUDA device."""
    exchange: Annotated[str, "workers"]
    """Colocated, with several partitions: how they are asked. ``"workers"``: by sampling processes,
    over connections. ``"collective"``: this process samples ahead in threads, in step with the
    other ranks, which exchange by ``all_to_all``, rows from device to device where the process
    group has a backend for that; no sampling process, no port. ``timeout`` is then also how long a
    rank may compute between batches."""
    shard: Annotated[str, "machine"]
    """How seeds are split over ranks. ``"machine"``: the ranks of a machine that are given the same
    seeds, in the same order, share them; those that are given others use theirs alone. Seeds that
    would come twice, as where two machines are given the same, are an error. ``"world"``: all ranks
    are given the seeds of the whole job, whose batches are numbered over all ranks; rank ``r`` of
    ``W`` takes ``r``, ``r + W``... A state then counts what the job has taken, and goes on with any
    number of ranks. ``"none"``: each rank uses all the seeds that it is given, whoever has them
    too. All else that decides batches (``batch_size``, fanouts, ``seed``...) is the same on all
    ranks."""
    feature_store: Annotated[FeatureStoreOptions | None, None]
    """A PyG ``FeatureStore`` of one's own, for features that the dataset has not."""
    remote_cache: Annotated[int | str | None, None]
    """With workers: memory for rows of other machines, of all with a graph store, as bytes
    (``"2GB"``, with what it takes to find them) or as a share of these rows (``"20%"``). Batches
    are drawn ahead, so that those rows are kept that are needed again soonest. The ranks of a
    machine, and loaders over the same dataset, share it; with a graph store each loader has its
    own. Where a colocated worker is lost, its loader draws none ahead for the rest of the epoch.
    None: nothing is kept."""
    lookahead: Annotated[int | None, None]
    """Batches to draw ahead. None: those that ask for 5 times what the cache holds, after which
    more would change nothing."""
    weight_attr: Annotated[str | None, None]
    """Name of the edge attribute to draw by, in place of ``edge_weight``; implies
    ``with_weight``."""
    transform: Annotated[Callable[[Any], Any] | None, None]
    """Called in this process with each batch; what it returns is yielded in its place."""
    transform_sampler_output: Annotated[Callable[[Any], Any] | None, None]
    """Called in this process with PyG's ``SamplerOutput`` of each batch, before it becomes one;
    returns it changed. Nothing that was not sampled can be added."""


class SharedArguments(TypedDict, total=False):
    """What all loaders take by position too, in an order of their own: that of GiGL's and PyG's.

    So each loader's signature names them again; they mean what `DistNeighborLoader` says.
    """

    num_workers: Annotated[int, 1]
    batch_size: Annotated[int, 1]
    context: Annotated[DistributedContext | None, None]
    local_process_rank: Annotated[int | None, None]
    local_process_world_size: Annotated[int | None, None]
    pin_memory_device: Annotated[torch.device | None, None]
    worker_concurrency: Annotated[int, 4]
    channel_size: Annotated[int | str, "4GB"]
    prefetch_size: Annotated[int | None, None]
    process_start_gap_seconds: Annotated[float | None, None]
    num_cpu_threads: Annotated[int | None, None]
    shuffle: Annotated[bool, False]
    drop_last: Annotated[bool, False]
    with_weight: Annotated[bool, False]
    sampler_options: Annotated[SamplerOptions | None, None]
    non_blocking_transfers: Annotated[bool, True]


class AllKeywords(SharedArguments, LoaderKeywords, total=False):
    """Both: what all loaders take by keyword."""


def _meanings(owner: type) -> dict[str, str]:
    """Return the string below each field of a class, which Python itself does not keep."""
    try:
        source = textwrap.dedent(inspect.getsource(owner))
    except OSError:  # installed without sources: signatures are whole, docstrings lack these
        return {}
    (found,) = ast.parse(source).body
    assert isinstance(found, ast.ClassDef)
    meanings = {}
    # By position: a string that stands alone is of the field above it.
    for field, below in pairwise(found.body):
        text = below.value if isinstance(below, ast.Expr) else None
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Constant)
        ):
            meanings[field.target.id] = inspect.cleandoc(str(text.value))
    return meanings


def _parameters() -> dict[str, inspect.Parameter]:
    """Return type and default of each keyword; those of an expansion are `ExpansionOptions`'."""
    # With extras, or `Annotated` would be gone, and the defaults with it.
    declared = get_type_hints(AllKeywords, include_extras=True)
    of_expansion = {field.name: field.default for field in fields(ExpansionOptions)}
    found = {}
    # expansions last: they are the base class's, and so the first ones here
    for name in sorted(declared, key=of_expansion.__contains__):
        if name in of_expansion:
            # Declared without a default there, since `ExpansionOptions` has it.
            kind, default = declared[name], of_expansion[name]
        else:
            kind, default = get_args(declared[name])
        found[name] = inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
        )
    return found


KEYWORDS = _parameters()
"""Each keyword as a parameter: its type, and its default."""
_MEANINGS = _meanings(ExpansionOptions) | _meanings(LoaderKeywords)


def completed(given: AllKeywords) -> AllKeywords:
    """Return the keywords of a loader, those that were not given with their defaults."""
    # mypy takes no dict whose keys it does not see for a TypedDict; `with_keywords` has checked
    # them.
    values: Any = {name: one.default for name, one in KEYWORDS.items()} | {**given}
    found: AllKeywords = values
    return found


def with_keywords(*, like: type | None = None, **other: object) -> Callable[[L], L]:
    """Show what a loader takes as ``**keywords`` in its signature and its docstring.

    Args:
        like: A loader; a parameter that neither the docstring nor this module explains means what
            it means there.
        **other: Defaults that differ in this loader.
    """

    def decorate(loader: L) -> L:
        own: Any = loader.__init__  # type: ignore[misc]
        signature = inspect.signature(own)
        *named, rest = signature.parameters.values()
        (taken,) = get_args(rest.annotation)
        names = get_type_hints(taken)
        added = [
            one.replace(default=other.get(name, one.default))
            for name, one in KEYWORDS.items()
            if name in names
        ]
        known = {*KEYWORDS, *(one.name for one in (*named, *added))}

        # Around `__init__`: a keyword of PyG's may stand in for an argument without a default.
        @wraps(own)
        def init(self: Any, *args: Any, **given: Any) -> None:
            own(self, *args, **understood(type(self).__name__, given, known))

        # What `inspect`, IDEs and Sphinx show; the call itself still takes `**keywords`.
        init.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*named, *added]
        )
        loader.__init__ = init  # type: ignore[misc]
        if loader.__doc__ is not None:  # python -OO has none
            of_like = {} if like is None else _split(like.__doc__ or "")[1]
            shown = [one.name for one in (*named, *added)]
            loader.__doc__ = _spelled_out(loader.__doc__, shown, of_like | _MEANINGS)
        return loader

    return decorate


def _spelled_out(doc: str, names: Iterable[str], meanings: dict[str, str]) -> str:
    """Return a docstring whose section "Args" explains all parameters, in their order."""
    before, own, after = _split(doc)
    # A loader's own words win: the keyword may mean something more in it.
    known = meanings | own
    entries = [
        textwrap.fill(
            f"{name}: {known[name]}", 96, initial_indent="    ", subsequent_indent="        ",
            # Names and literals have to stay whole.
            break_long_words=False, break_on_hyphens=False,
        )
        for name in names
        if name in known
    ]  # fmt: skip
    return "\n".join([f"{before}\n\nArgs:", *entries, "", after])


def _split(doc: str) -> tuple[str, dict[str, str], str]:
    """Return a docstring as (before "Args", what that says by parameter, after it)."""
    before, _, rest = inspect.cleandoc(doc).partition("\n\nArgs:\n")
    section, _, after = rest.partition("\n\n")
    return before, {name: " ".join(text.split()) for name, text in _ENTRY.findall(section)}, after
