"""From host memory to the accelerator: pinned memory, and copies that overlap compute."""
