"""Is this machine fit to serve, and this model fit to be served? Findings, each with what to do."""
