"""The journeys: from nothing to a chat answer, as a demo and as tests."""
