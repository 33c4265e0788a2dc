"""What scripts for PyG do to the graph of a loader, `loader.data`, and the answers to it.

There it is the `Data` that batches are cut from. Here it is a dataset that samplers read as it was
built, so a new attribute would reach no batch.
"""

from typing import Any

import numpy as np
from torch import Tensor

from gigl_loader.errors import UsageError

_READ = {
    "x": "dataset.get_features(ids) reads rows of features, and batches have their own in x",
    "y": "dataset.get_labels(ids) reads labels, and batches have their own in y",
    "edge_index": "batches have their own; dataset.graph has the edges of this partition",
    "edge_attr": "batches have their own",
    "train_mask": "dataset.train_node_ids has the ids of the split",
    "val_mask": "dataset.val_node_ids has the ids of the split",
    "test_mask": "dataset.test_node_ids has the ids of the split",
}
"""Advice for an attribute of PyG's `Data` that a dataset does not have."""
_INFERENCE = (
    "; PyG's examples do this for layer-wise inference, which full_graph_inference(model, dataset) "
    "computes without it"
)


class NotPyGsError(UsageError, AttributeError):
    """A dataset is no `Data`: the message says what to do; `hasattr` returns False."""


class AnswersForPyG:
    """Answers what a dataset cannot do, and PyG's `Data` can."""

    def __getattr__(self, name: str) -> Any:
        """Raise, as for every missing attribute; those of PyG's `Data` with advice."""
        # A property that raised AttributeError comes here, too: again, it gives its own error.
        if hasattr(type(self), name):
            return object.__getattribute__(self, name)
        if name in _READ:
            raise NotPyGsError(f"a {type(self).__name__} has no {name!r}: {_READ[name]}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, but not one that a user would look for in batches."""
        known = name.startswith("_") or name in vars(self)
        in_class = getattr(type(self), name, None)
        if isinstance(in_class, property) and in_class.fset is None:
            raise NotPyGsError(
                f"dataset.{name} is known and cannot be set: set it on the PyG graph before "
                f"DistDataset.from_pyg(data){_INFERENCE}"
            )
        # A subclass may keep tensors of its own, as may GLT's class, which sets those that it has
        # when it is made.
        is_rows = isinstance(value, Tensor | np.ndarray)
        if is_rows and not known and in_class is None and self._is_plain():
            raise NotPyGsError(
                f"dataset.{name} = ... would reach no batch: samplers read the graph as it was "
                f"when DistDataset.from_pyg(data) was called. Set data.{name} before that and "
                "build the dataset and the loader again; or keep the tensor in a variable, and "
                f"give it to batches by transform=, as rows {name}[batch.n_id]"
            )
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        """Delete an attribute of the user's own; data stay."""
        if name not in vars(self):
            raise NotPyGsError(
                f"{name!r} cannot be deleted from a dataset: to have batches without it, delete it "
                f"from the PyG graph before DistDataset.from_pyg(data){_INFERENCE}"
            )
        super().__delattr__(name)

    def _is_plain(self) -> bool:
        """Return whether this is no user's subclass, which may have attributes of its own."""
        return type(self).__module__.partition(".")[0] == __name__.partition(".")[0]
