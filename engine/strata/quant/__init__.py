"""Bit formats: pack, unpack, sizes, errors."""
