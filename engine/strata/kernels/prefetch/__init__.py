"""Experts that are fetched before their layer asks for them: which, and what becomes of them."""
