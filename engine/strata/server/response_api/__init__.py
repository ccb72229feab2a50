"""OpenAI's Responses API, without memory: every request brings its whole conversation."""
