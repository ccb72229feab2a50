"""The Strata operator: turns StrataModel resources into pods that run the engine."""
