"""Where a model's routed experts are, and what runs them there."""
