"""What other libraries' loaders have and ours do not: an error says what to use instead.

The keywords of other loaders are in `gigl_loader.loader.options.signatures`.
"""

from typing import Any

from torch_geometric.data import Data, HeteroData

from gigl_loader.errors import UsageError

OVERRIDES = {
    "collate_fn": "torch's and PyG's name",
    "filter_fn": "PyG's hook of a sampled batch",
    "_colloate_fn": "graphlearn-torch's name",
    "_get_iterator": "torch's and PyG's hook of an epoch; `__iter__` is the one here",
}
"""Methods that loops over a loader here never call, and where people know them from."""
HOOKS = (
    "give the loader transform=, or override _make_batch(self, msg), which makes a batch of a "
    'message, or _collate_fn(self, msg) around it; see "Your own loader" in the guide'
)


_STORE = (
    "override _init_graph_store_connections(self, **given) around super(), or "
    "_setup_for_graph_store(self, **given), which returns the inputs of the servers"
)
STEPS = dict.fromkeys(
    (
        "_init_graph_store_sampling_backends",
        "_register_graph_store_sampling_inputs",
        "_sampler_input_has_batches",
    ),
    _STORE,
)
"""Steps of GiGL's main of August 2026, where a server has a backend for all inputs of a rank: here
it has a producer for each, as in GiGL before. With what to override instead."""
LABELS = {"_set_labels": "override _make_batch(self, msg), whose batch has y_positive"}
"""A step of GiGL's ``DistABLPLoader``."""
NOT_CALLED = {name: f"({known}) {HOOKS}" for name, known in OVERRIDES.items()} | STEPS
"""Methods of a subclass that would have no effect, and what to do instead."""


class NotTorchsError(UsageError, AttributeError):
    """Raised for an attribute that only torch's ``DataLoader`` has; `hasattr` then returns False.

    Frameworks check so before they use it.
    """


class AnswersOthers:
    """Answers code of torch and PyG that takes a loader for one of theirs."""

    @property
    def sampler(self) -> Any:
        """Raise: a loader has no torch sampler, which accelerate's ``skip_first_batches`` wants.

        It would build torch's `DataLoader` of the seeds, which takes each batch out of turn: with
        other draws than the epoch's, and no worker ahead.
        """
        raise NotTorchsError(
            f"a {type(self).__name__} has no torch sampler: it numbers its batches itself, and "
            "torch's DataLoader would get other draws. To continue within an epoch, as "
            "skip_first_batches(loader, n) does, keep loader.state_dict() and give it to "
            'load_state_dict(); or give it {**loader.state_dict(), "yielded": n}, which skips n '
            "batches; ranks share seeds by shard="
        )

    batch_sampler = sampler

    def __getitem__(self, index: Any) -> Any:
        raise UsageError(
            f"a {type(self).__name__} is a loader, not a dataset for torch's DataLoader: iterate "
            "over it, it has its own workers (num_workers=); loader(index) is the batch of the "
            "seeds at some positions"
        )

    def filter_fn(self, batch: Data | HeteroData) -> Data | HeteroData:
        """Return the batch unchanged: PyG's zipped loaders let rows be gathered here."""
        return batch
