"""The keywords of all loaders, as signatures show them.

Type and default of each are declared in `LoaderOptions`; `with_keywords` puts them into the
signature of each loader, for ``help()`` and the documentation.

Keywords of the loaders that users migrate from, torch's, PyG's and graphlearn-torch's: those
without an effect here are accepted, with one warning; the others are refused, all in one error. The
page "Coming from PyG, graphlearn-torch or GiGL" has the whole tables.
"""

import difflib
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar, get_args, get_type_hints

from gigl_loader.errors import WrongTypeError
from gigl_loader.loader.options.loader_options import LoaderOptions
from gigl_loader.loader.options.start_log import GAVE_BATCH_SIZE
from gigl_loader.runtime.ranks.collectives import COULD_NOT_BUILD, report_failure_to_ranks
from gigl_loader.sampler.options import ExpansionOptions

L = TypeVar("L", bound=type)


def _parameters() -> dict[str, inspect.Parameter]:
    """Return type and default of each keyword, those of `ExpansionOptions` last."""
    kinds = get_type_hints(ExpansionOptions) | get_type_hints(LoaderOptions)
    own = [one for one in fields(LoaderOptions) if one.name not in ("num_neighbors", "expansion")]
    return {
        one.name: inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=one.default,
            annotation=kinds[one.name],
        )
        for one in (*own, *fields(ExpansionOptions))
    }


KEYWORDS = _parameters()
"""Each keyword as a parameter: its type, and its default."""


def with_keywords(**other: object) -> Callable[[L], L]:
    """Show a loader's ``**keywords`` in its signature, and answer those that it does not take.

    An error of the constructor is told to the other ranks, as that of `BaseDistLoader` is.

    Args:
        **other: Defaults that differ in this loader.
    """

    def decorate(loader: L) -> L:
        kind: Any = loader
        own = kind.__init__
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
            with report_failure_to_ranks(COULD_NOT_BUILD):
                own(self, *args, **understood(type(self).__name__, given, known))

        init.__doc__ = (
            f"""Start a loader; ``help({loader.__name__})`` says what each parameter means."""
        )
        # `inspect`, IDEs and Sphinx show this; the call itself still takes `**keywords`.
        vars(init)["__signature__"] = signature.replace(parameters=[*named, *added])
        kind.__init__ = init
        return loader

    return decorate


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
