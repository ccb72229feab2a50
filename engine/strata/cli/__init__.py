"""Arguments, help and progress of the `strata` command; no logic."""
