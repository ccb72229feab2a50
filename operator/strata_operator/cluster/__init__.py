"""The API server: what is there (watch caches), how it is changed (server-side apply), and its errors translated."""
