"""Measurements: decode speed against the memory bound, perplexity."""
