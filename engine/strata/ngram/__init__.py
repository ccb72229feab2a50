"""Tables of n-gram embeddings: rows that are read from disk as tokens need them."""
