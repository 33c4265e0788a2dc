"""Sampling on the device of the model: structure, draws and rows as tensors there."""
