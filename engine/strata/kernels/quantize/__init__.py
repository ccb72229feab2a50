"""Rounding of activations to 8 bits; the reference is ``kernels.rows.quantize_rows``."""
