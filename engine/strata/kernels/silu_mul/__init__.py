"""SwiGLU: silu(gate) * up."""
