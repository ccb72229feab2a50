"""Which experts a token takes."""
