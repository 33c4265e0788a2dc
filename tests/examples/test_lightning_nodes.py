"""Lightning drives a loader; a checkpoint within an epoch brings back what was not seen."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.examples._run import EXAMPLES

pytestmark = [
    pytest.mark.multiprocess,
    pytest.mark.filterwarnings("ignore"),  # Lightning's: about workers, loggers, deprecations
]
EPOCHS, STEPS = 3, 17  # 1,078 seeds in batches of 64


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import lightning_nodes

    yield lightning_nodes
    sys.modules.pop("lightning_nodes", None)


def _fit(example: ModuleType, checkpoint: str | None, **how: Any) -> list[list[int]]:
    """Return the seeds of each training step of a run."""
    seen: list[list[int]] = []
    model: Any = example.NodeClassifier

    class Recorder(model):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            seen.append(batch.batch.tolist())
            return super().training_step(batch, batch_idx)

    graph = example.GraphDataModule(example.digits(), [4, 4], batch_size=64, seed=5)
    trainer = example.make_trainer(enable_progress_bar=False, enable_model_summary=False, **how)
    trainer.fit(Recorder(64, 10), graph, ckpt_path=checkpoint)
    return seen


def test_a_checkpoint_within_an_epoch_goes_on_with_the_next_batch(
    example: ModuleType, tmp_path: Path
) -> None:
    whole = _fit(example, None, max_epochs=EPOCHS, enable_checkpointing=False)
    assert len(whole) == EPOCHS * STEPS
    epochs = [{s for step in whole[i : i + STEPS] for s in step} for i in (0, STEPS, 2 * STEPS)]
    assert epochs[0] == epochs[1] == epochs[2]
    assert whole[:STEPS] != whole[STEPS : 2 * STEPS]

    keep = example.ModelCheckpoint(tmp_path, every_n_train_steps=24)
    before = _fit(example, None, max_steps=26, callbacks=[keep])
    assert before == whole[:26]
    after = _fit(example, keep.best_model_path, max_epochs=EPOCHS, enable_checkpointing=False)
    assert after == whole[24:]
