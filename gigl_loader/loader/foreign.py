"""Keywords of the loaders that people come from: torch's, PyG's and graphlearn-torch's.

Those that change nothing here are taken, with one warning; the others are answered, all in one
error. The page "Coming from PyG, graphlearn-torch or GiGL" has the whole tables.
"""

import difflib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from gigl_loader.errors import WrongTypeError

CHANGE_NOTHING = {
    "persistent_workers": "workers live as long as the loader",
    "pin_memory": "batches are pinned where they go to a GPU",
    "prefetch_factor": "workers run ahead as far as channel_size lets them",
    "filter_per_worker": "workers always gather the rows",
    "is_sorted": "edges are sorted once, when the dataset is made",
    "multiprocessing_context": "workers are forked by a process that has no threads and no GPU",
}
"""Why a keyword is not needed, whatever its value."""
_HAS_NO_OTHER = {"collect_features": True, "directed": True}
"""Values that are the only ones here."""
_PLAIN = "give num_workers, worker_concurrency, channel_size and prefetch_size themselves"
ANSWERS = {
    "data": "give the dataset first: DistDataset.from_pyg(data) makes one",
    "generator": "seed= decides shuffle and every draw",
    "sampler": (
        'seeds in another order, or some more often: give the seeds so; sampler here is "uniform" '
        'or "labor", how neighbours are drawn'
    ),
    "batch_sampler": "batches are cut from the seeds, all of batch_size",
    "collate_fn": "transform= is called with each batch",
    "neighbor_sampler": "sampler_options=CustomSamplerOptions(...) has a sampler of one's own",
    "num_samples": "num_neighbors by edge type, or sampler_options=PPRSamplerOptions(...)",
    "directed": 'subgraph_type="induced" is what False means',
    "edge_dir": "is of the dataset: DistDataset.from_pyg(data, edge_dir=...)",
    "collect_features": "features always come",
    "to_device": "pin_memory_device= says where batches go",
    "random_seed": "seed=",
    "worker_options": _PLAIN,
}
"""What to do in place of a keyword."""


def understood(loader: str, given: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Return the keywords of ``given`` that are the loader's.

    Args:
        loader: Name of its class.
        given: What the user gave by name.
        known: Names of all that it takes.

    Raises:
        WrongTypeError: Some are not, and change something: says of each what to do.
    """
    names = set(known)
    kept: dict[str, Any] = {}
    dropped: list[str] = []
    wrong: dict[str, str] = {}
    for name, value in given.items():
        # PyG's and torch's are None where nothing is meant; ours of that name have a text.
        if name == "sampler" and not isinstance(value, str):
            if value is not None:
                wrong[name] = ANSWERS[name]
        elif name in names:
            kept[name] = value
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
        # 3: whoever called the loader's constructor, which calls this
        warnings.warn(f"{loader} does without these keywords ({why})", UserWarning, stacklevel=3)
    return kept
