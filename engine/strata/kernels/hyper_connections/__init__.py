"""Several residual streams: what a block takes of them, and what they take of what it gives."""
