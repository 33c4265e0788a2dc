"""What tests of devices share: memory that a test's own kind of device would have."""

from collections.abc import Callable

import pytest

from gigl_loader.batch.device.device_memory import DeviceMemory
from gigl_loader.sources.in_process import device_source


@pytest.fixture
def memory_of_devices(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[DeviceMemory]], None]:
    """Let the sources of loaders that are built from now on have memory of another kind."""
    return lambda kind: monkeypatch.setattr(device_source, "DeviceMemory", kind)
