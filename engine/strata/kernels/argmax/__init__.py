"""The likeliest token of each row of logits."""
