"""Which of the chosen experts are a rank's own."""
