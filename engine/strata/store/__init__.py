"""Checkpoints in, the store format, and reading it back."""
