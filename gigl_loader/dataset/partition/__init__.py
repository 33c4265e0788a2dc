"""A partition as plain arrays: read by samplers, built of tensors."""
