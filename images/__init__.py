"""The container images and the command that builds them: ``python3 -m images.build``. Standard library only."""
