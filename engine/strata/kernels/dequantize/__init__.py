"""Codes of a bit format back to numbers."""
