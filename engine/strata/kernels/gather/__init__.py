"""Blobs copied from address to address."""
