"""The Strata operator: turns StrataModel resources into pods that run the engine."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("strata-engine")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0.0.0"
