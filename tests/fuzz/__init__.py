"""What reads bytes of strangers, fed with bytes of nobody: ``targets`` has them, ``make fuzz`` runs them for long."""
