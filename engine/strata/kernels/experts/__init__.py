"""Every token through its own experts."""
