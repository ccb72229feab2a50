"""HTTP and SSE, and the translation of requests to and from the engine's words."""
