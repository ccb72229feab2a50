"""Embeddings of n-grams into the residual streams: gated by how well they suit each, then convolved over time."""
