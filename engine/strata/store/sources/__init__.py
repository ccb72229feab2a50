"""Foreign checkpoints: tensors by name, lazily."""
