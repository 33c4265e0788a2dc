"""The other deployment: a storage cluster samples, compute processes train."""
