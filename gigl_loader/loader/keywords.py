"""The keywords of all loaders, as signatures, docstrings and type checkers show them.

Type, default and meaning of each are declared in `LoaderOptions`. A new keyword is a field there,
and an entry of `LoaderKeywords`, which type checkers read (PEP 692); `with_keywords` puts it into
signature and docstring of each loader, for ``help()`` and the documentation.

Keywords of the loaders that users migrate from, torch's, PyG's and graphlearn-torch's: those
without an effect here are accepted, with one warning; the others are refused, all in one error. The
page "Coming from PyG, graphlearn-torch or GiGL" has the whole tables.
"""

import ast
import difflib
import inspect
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import wraps
from itertools import pairwise
from typing import Any, Literal, TypedDict, TypeVar, get_args, get_type_hints

from gigl_loader.errors import WrongTypeError
from gigl_loader.loader.args import LoaderOptions
from gigl_loader.loader.config import Device
from gigl_loader.loader.runtime import DistributedContext
from gigl_loader.loader.start_line import GAVE_BATCH_SIZE
from gigl_loader.options import (
    EvenRanks,
    Exchange,
    ExpansionOptions,
    FeatureStoreOptions,
    SamplerOptions,
    SamplingMethod,
    Shard,
    SubgraphType,
    TemporalStrategy,
)
from gigl_loader.ranks import COULD_NOT_BUILD, told_to_ranks

L = TypeVar("L", bound=type)

_ENTRY = re.compile(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)
"""A parameter in a docstring, and its text with the indented lines below it."""
_MODULES = re.compile(r"\b(?:\w+\.)+")
"""The modules before a class, which types in docstrings omit."""
_NO_BREAK = "\N{NO-BREAK SPACE}"
_LONGEST_TYPE = 60


GROUPS = {
    "Data": (
        "dataset", "num_neighbors", "input_nodes", "edge_label_index", "edge_label",
        "supervision_edge_type", "use_label_edge_index_output", "exclude_supervision",
        "neg_sampling", "neg_sampling_ratio", "strict", "batch_size", "shuffle", "drop_last",
        "seed", "with_edge", "feature_store", "transform", "transform_sampler_output",
        "pad",
    ),
    "Draws": (
        "replace", "weight_attr", "with_weight", "sampling_method", "sampler_options",
        "subgraph_type", "disjoint", "time_attr", "input_time", "edge_label_time",
        "temporal_strategy", "time_window",
    ),
    "Ranks": ("shard", "even_ranks"),
    "Processes": (
        "num_workers", "worker_concurrency", "exchange", "in_order", "worker_init_fn",
    ),
    "Buffers": ("channel_size", "remote_cache"),
    "Device": ("device", "pin_memory_device", "device_prefetch"),
    "Faults": ("timeout", "max_restarts", "reconnect_timeout"),
    "Accepted from GiGL": (
        "prefetch_size", "process_start_gap_seconds", "num_cpu_threads", "non_blocking_transfers",
        "context", "local_process_rank", "local_process_world_size",
    ),
}  # fmt: skip
"""The sections of a loader's docstring, in their order, and the parameters that each explains."""


class LoaderKeywords(TypedDict, total=False):
    """Names and types that all loaders take by keyword only; see `LoaderOptions` for the rest."""

    seed: int | None
    replace: bool
    in_order: bool
    timeout: float
    max_restarts: int
    reconnect_timeout: float
    worker_init_fn: Callable[[int], None] | None
    even_ranks: EvenRanks | None
    with_edge: bool | None
    device: Device | None
    device_prefetch: int
    exchange: Exchange
    shard: Shard
    feature_store: FeatureStoreOptions | None
    remote_cache: int | str | None
    weight_attr: str | None
    transform: Callable[[Any], Any] | None
    transform_sampler_output: Callable[[Any], Any] | None
    pad: bool | dict[str, Any]
    # of `ExpansionOptions`, by PyG's names
    subgraph_type: SubgraphType
    disjoint: bool | Literal["by_time"]
    time_attr: str | None
    temporal_strategy: TemporalStrategy
    time_window: float | None
    sampling_method: SamplingMethod


class AllKeywords(LoaderKeywords, total=False):
    """All keywords of every loader, those that most take by position included."""

    num_workers: int
    batch_size: int
    context: DistributedContext | None
    local_process_rank: int | None
    local_process_world_size: int | None
    pin_memory_device: Device | None
    worker_concurrency: int
    channel_size: int | str
    prefetch_size: int | None
    process_start_gap_seconds: float | None
    num_cpu_threads: int | None
    shuffle: bool
    drop_last: bool
    with_weight: bool
    sampler_options: SamplerOptions | None
    non_blocking_transfers: bool


def _meanings(owner: type) -> dict[str, str]:
    """Return the string below each field of a class, which Python itself does not keep."""
    try:
        source = textwrap.dedent(inspect.getsource(owner))
    except OSError:  # installed without sources: signatures are whole, docstrings lack these
        return {}
    (found,) = ast.parse(source).body
    assert isinstance(found, ast.ClassDef)
    meanings = {}
    # By position: a string that stands alone belongs to the field above it.
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
    """Return type and default of each keyword, those of `ExpansionOptions` last."""
    kinds = get_type_hints(LoaderOptions) | get_type_hints(ExpansionOptions)
    own = [one for one in fields(LoaderOptions) if one.name not in ("num_neighbors", "expansion")]
    return {
        one.name: inspect.Parameter(
            one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default,
            annotation=kinds[one.name],
        )
        for one in (*own, *fields(ExpansionOptions))
    }  # fmt: skip


KEYWORDS = _parameters()
"""Each keyword as a parameter: its type, and its default."""
_MEANINGS = _meanings(ExpansionOptions) | _meanings(LoaderOptions)
_OWN_MEANINGS: dict[type, dict[str, str]] = {}
"""The text of each parameter in a loader's own docstring, by loader."""


def with_keywords(*, like: type | None = None, **other: object) -> Callable[[L], L]:
    """Show a loader's ``**keywords`` in its signature and its docstring.

    Args:
        like: A loader; a parameter that neither the docstring nor this module explains has the
            meaning that it has there.
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
        places = list(signature.parameters)  # self, which the call below leaves out, is the first
        place = places.index("batch_size") if "batch_size" in places else len(places)
        known = {*KEYWORDS, *(one.name for one in (*named, *added))}

        # Around `__init__`: a PyG keyword may replace an argument without a default.
        @wraps(own)
        def init(self: Any, *args: Any, **given: Any) -> None:
            by_place = len(args) >= place
            setattr(self, GAVE_BATCH_SIZE, by_place or "batch_size" in given)
            # Until all ranks have built theirs: each waits for the others somewhere in there.
            with told_to_ranks(COULD_NOT_BUILD):
                own(self, *args, **understood(type(self).__name__, given, known))

        init.__doc__ = (
            f"""Start a loader; ``help({loader.__name__})`` says what each parameter means."""
        )
        # `inspect`, IDEs and Sphinx show this; the call itself still takes `**keywords`.
        init.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*named, *added]
        )
        loader.__init__ = init  # type: ignore[misc]
        if loader.__doc__ is not None:  # python -OO has none
            before, told, after = _split(loader.__doc__)
            of_like = {} if like is None else _OWN_MEANINGS[like]
            # A loader's own text wins: the keyword may mean something more in it.
            _OWN_MEANINGS[loader] = meanings = of_like | _MEANINGS | told
            shown = {one.name: one for one in (*named, *added)}
            loader.__doc__ = "\n".join([before, "", *_sections(shown, meanings), after])
        return loader

    return decorate


def _sections(shown: Mapping[str, inspect.Parameter], meanings: dict[str, str]) -> Iterator[str]:
    """Yield the lines that explain parameters, in the sections of `GROUPS`."""
    for title, members in GROUPS.items():
        explained = [name for name in members if name in shown and name in meanings]
        if explained:
            yield f"{title}:"
            yield from (_entry(shown[name], meanings[name]) for name in explained)
            yield ""


def _entry(parameter: inspect.Parameter, meaning: str) -> str:
    """Return the lines of a docstring for one parameter, with its type if that is short."""
    kind = _MODULES.sub("", inspect.formatannotation(parameter.annotation))
    # A long type says less than the text does. Sphinx reads name and type from one line, so they
    # are not wrapped.
    type_text = f" ({kind})" if len(kind) <= _LONGEST_TYPE else ""
    name = f"{parameter.name}{type_text}:".replace(" ", _NO_BREAK)
    return textwrap.fill(
        f"{name} {meaning}", 96, initial_indent="    ", subsequent_indent="        ",
        # Names and literals have to stay whole.
        break_long_words=False, break_on_hyphens=False,
    ).replace(_NO_BREAK, " ")  # fmt: skip


def _split(doc: str) -> tuple[str, dict[str, str], str]:
    """Return a docstring as (before "Args", the text of each parameter, after it)."""
    before, _, rest = inspect.cleandoc(doc).partition("\n\nArgs:\n")
    section, _, after = rest.partition("\n\n")
    return before, {name: " ".join(text.split()) for name, text in _ENTRY.findall(section)}, after


CHANGE_NOTHING = {
    "persistent_workers": "workers live as long as the loader",
    "pin_memory": "batches are pinned where they go to a GPU",
    "prefetch_factor": "workers run ahead as far as channel_size lets them",
    "filter_per_worker": "workers always gather the rows",
    "is_sorted": "edges are sorted once, when the dataset is made",
    "multiprocessing_context": "workers are forked by a process that has no threads and no GPU",
}
"""Why a keyword is not needed, whatever its value."""
DEPRECATED = {"lookahead": "the size of remote_cache decides it; leave it out"}
"""Keywords of earlier versions that are accepted without effect."""
_HAS_NO_OTHER = {"collect_features": True, "directed": True}
"""Values that are the only ones here."""
_PLAIN = "give num_workers, worker_concurrency, channel_size and prefetch_size themselves"
ANSWERS = {
    "data": "give the dataset first: DistDataset.from_pyg(data) makes one",
    "generator": "seed= decides shuffle and every draw",
    "sampler": (
        "pass the seeds in the order that you want; sampling_method= chooses how neighbours are "
        "drawn"
    ),
    "batch_sampler": "batches are cut from the seeds, all of batch_size",
    "collate_fn": "transform= is called with each batch",
    "neighbor_sampler": "sampler_options=CustomSamplerOptions(...) takes a sampler of your own",
    "num_samples": "num_neighbors by edge type, or sampler_options=PPRSamplerOptions(...)",
    "directed": 'subgraph_type="induced" has the meaning of False',
    "edge_dir": "it belongs to the dataset: DistDataset.from_pyg(data, edge_dir=...)",
    "collect_features": "features always come",
    "to_device": "device= says where batches go",
    "random_seed": "seed=",
    "worker_options": _PLAIN,
}
"""Advice for a keyword that loaders here do not take."""


def understood(loader: str, given: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Return those keywords of ``given`` that the loader takes.

    Args:
        loader: Name of its class.
        given: The user's keywords.
        known: Names of all keywords of the loader.

    Raises:
        WrongTypeError: Some are unknown, and would have an effect: gives advice on each.
    """
    names = set(known)
    kept: dict[str, Any] = {}
    dropped: list[str] = []
    wrong: dict[str, str] = {}
    for name, value in given.items():
        if name in names:
            kept[name] = value
        elif name in DEPRECATED:
            # 3: the caller of the loader's constructor, which calls this
            warnings.warn(f"{name}: {DEPRECATED[name]}", DeprecationWarning, stacklevel=3)
        elif name in CHANGE_NOTHING:
            dropped.append(name)
        elif name in ANSWERS:
            if value is not None and value != _HAS_NO_OTHER.get(name, ()):
                wrong[name] = ANSWERS[name]
        else:
            similar = difflib.get_close_matches(name, names, n=1)
            wrong[name] = "".join(f"did you mean {one!r}?" for one in similar)
    if wrong:
        texts = [f"{name!r}" + (f"; {text}" if text else "") for name, text in wrong.items()]
        several = "s" if len(wrong) > 1 else ""
        a = "" if several else "an "
        raise WrongTypeError(
            f"{loader}.__init__() got {a}unexpected keyword argument{several} "
            + (". And ".join(texts) if several else texts[0])
        )
    if dropped:
        why = "; ".join(f"{name}: {CHANGE_NOTHING[name]}" for name in dropped)
        # 3: the caller of the loader's constructor, which calls this
        warnings.warn(f"{loader} does without these keywords ({why})", UserWarning, stacklevel=3)
    return kept
