"""A release and its air-gap bundle: ``python3 -m release --help``."""
