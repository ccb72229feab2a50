"""x @ W.T + b, for W in every bit format."""
