"""gpt-oss' SwiGLU, clamped."""
