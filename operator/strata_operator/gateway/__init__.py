"""The gateway's sidecar: beside LiteLLM's proxy, it writes down which models and which clients' keys there are."""
