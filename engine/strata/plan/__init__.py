"""config.json and hardware facts to bytes and predicted speed; the operator uses it too."""
