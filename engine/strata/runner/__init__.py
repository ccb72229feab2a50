"""A scheduled batch to tensors to logits."""
