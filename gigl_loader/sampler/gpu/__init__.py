"""The sampler once more, on the device of the model: structure, draws and rows as tensors there.

Face: `device_sampler`, `device_graph`, `kernel_choice`.
Must not know: who takes the batches.
"""
