"""Experts that a step needs and VRAM has not: which are fetched, which the CPU computes, and how the two meet."""
