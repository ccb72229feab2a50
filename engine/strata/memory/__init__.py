"""Bytes: the KV cache's tensors."""
