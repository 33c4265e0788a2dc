"""Folders in object storage: read into a cache on this machine, and written from one."""
