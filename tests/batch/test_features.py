"""Features in fewer bytes become float32 again; other messages pass through as they are."""

import torch

from gigl_loader.batch.collate import with_widened_features
from gigl_loader.batch.message import SCALES


def test_each_column_has_its_scale_and_offset() -> None:
    message = {
        "a.x": torch.tensor([[0, 2], [4, 1]], dtype=torch.uint8),
        "a.n_id": torch.tensor([5, 7]),
        "b.x": torch.tensor([[0.5]], dtype=torch.float16),
        f"{SCALES}a.x": torch.tensor([[0.5, 10.0], [-1.0, 3.0]]),
        f"{SCALES}b.x": torch.empty(0),
    }
    before = dict(message)
    found = with_widened_features(message)
    assert set(found) == {"a.x", "a.n_id", "b.x"}
    assert torch.equal(found["a.x"], torch.tensor([[-1.0, 23.0], [1.0, 13.0]]))
    assert found["a.n_id"] is message["a.n_id"]
    assert found["b.x"].dtype == torch.float32
    assert found["b.x"].tolist() == [[0.5]]
    assert message == before  # the message itself is left as it came


def test_a_message_without_scales_is_the_same_object() -> None:
    message = {"x": torch.ones(2, 2)}
    assert with_widened_features(message) is message
