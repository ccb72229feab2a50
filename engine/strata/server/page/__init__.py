"""The page at ``/``: a chat, and what the server does meanwhile."""
