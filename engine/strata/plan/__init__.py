"""config.json and hardware facts to bytes; the operator uses it too."""
