"""Rows of a table in any bit format."""
