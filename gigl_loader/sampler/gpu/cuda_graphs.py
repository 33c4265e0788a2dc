"""The expansions of one loader, replayed as one CUDA graph where they are all alike.

What the host launches for a batch follows from its numbers of roots: sizes, and addresses of new
memory. The roots themselves, and the keys of draws, are in device memory. So the launches of two
batches with as many roots differ in that memory alone, and a graph of one serves the other::

    batch 0    launched                      kernels are loaded, memory is allocated
    batch 1    captured, then replayed       as many roots as batch 0
    batch 2    its roots over those of batch 1; replayed; results copied out
    last one   launched                      fewer seeds

Padding changes nothing here: it comes after the sampling, and leaves the roots as many as they are.
"""

import logging
from collections.abc import Callable

from gigl_loader.batch.device.device_memory import DeviceMemory
from gigl_loader.sampler.gpu.device_expansion import DeviceExpansion, DeviceRoots, Grown

logger = logging.getLogger(__name__)


class Replays:
    """Launches expansions, by a replay where that is possible. For one thread.

    Args:
        expansion: Launches a batch.
        memory: Captures on the device, and is in use in every call.
        may_capture: Whether no launch of ``expansion`` needs the host.
    """

    def __init__(
        self, expansion: DeviceExpansion, memory: DeviceMemory, *, may_capture: bool
    ) -> None:
        self._expansion, self._memory = expansion, memory
        self._may_capture = may_capture and memory.can_capture
        self._last_sizes: object = None
        self._captured: tuple[DeviceRoots, Grown, Callable[[], None]] | None = None
        self.num_replayed = 0
        """Batches that were replayed."""

    def run(self, roots: DeviceRoots) -> Grown:
        """Launch all hops of a batch; returns before they are done."""
        is_repeated = roots.sizes == self._last_sizes
        self._last_sizes = roots.sizes
        if self._captured is None and is_repeated and self._may_capture:
            self._capture(roots)
        if self._captured is None or self._captured[0].sizes != roots.sizes:
            return self._expansion.run(roots)
        kept, grown, replay = self._captured
        kept.flat.copy_(roots.flat)
        replay()
        self.num_replayed += 1
        return grown.copied()  # the next replay writes to the same memory

    def _capture(self, roots: DeviceRoots) -> None:
        """Capture the launches of a batch, of which there is one graph for good."""
        self._may_capture = False
        kept = roots.copied()  # each batch still reads the seeds among its own
        try:
            nbytes = self._expansion.captured_bytes(roots.layout)
            grown, replay = self._memory.captured(lambda: self._expansion.run(kept), nbytes)
        except RuntimeError as error:
            logger.warning(
                "%s captures no CUDA graph of a batch, so each launch takes the host's time: %s",
                self._memory.device,
                error,
            )
            return
        self._captured = kept, grown, replay
