"""Features that travelled in fewer bytes become float32, on the device that they are on."""

from gigl_loader.dataset.quantised import widened
from gigl_loader.message import SCALES, SampleMessage


def with_widened_features(message: SampleMessage) -> SampleMessage:
    """Return ``message`` with float32 features, and without what made them."""
    # Widening comes after the copy to the device: what crosses the bus is the fewer bytes.
    scales = {name.removeprefix(SCALES): value for name, value in message.items()
              if name.startswith(SCALES)}  # fmt: skip
    # The common case: the very same message, so that who reads it next sees no copy either.
    if not scales:
        return message
    kept = {name: value for name, value in message.items() if not name.startswith(SCALES)}
    return {**kept, **{name: widened(kept[name], some) for name, some in scales.items()}}
