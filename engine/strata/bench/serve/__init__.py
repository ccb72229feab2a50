"""Load on a server of the OpenAI API, and what comes back: speed as a client sees it."""
