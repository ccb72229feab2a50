"""The mathematics of each model; one file per architecture."""
