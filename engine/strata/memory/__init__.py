"""Bytes: the KV cache, a device's own memory, and host memory that a GPU reads."""
