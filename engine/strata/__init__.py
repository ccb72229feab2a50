"""Strata serves Mixture-of-Experts language models that are larger than the GPU's memory.

Importing this package never imports torch; the rooms that hold tensors do.
"""

__version__ = "0.1.0"
