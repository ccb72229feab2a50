"""Journeys through the real API server, kubelet and scheduler, with a stand-in for the engine's image."""
