"""How the operator does with a thousand models: ``make bench-operator``."""
