"""The one exception tree of the engine.

    StrataError
    ├── UsageError                     the caller must change something (CLI exit code 2, HTTP 4xx)
    │   ├── OptionError                a flag or field is unknown or out of range
    │   ├── CheckpointError            a model's files are missing, truncated, altered or not a model
    │   │   ├── UnsupportedModelError  an architecture or tensor type that Strata does not run
    │   │   └── UnfetchedError         a model on the Hub of which too little is here to say more
    │   ├── StorageError               a place on disk cannot be written, or has no room (CLI exit code 3)
    │   ├── HardwareError              the device asked for is not there, or too small
    │   └── RequestError               an API request that cannot be served as it stands (HTTP 400)
    │       └── UnknownModelError      a model name that is not served here (HTTP 404)
    └── EngineError                    the engine itself failed (CLI exit code 1, HTTP 5xx)
        ├── NotReadyError              the model is still loading; try later (HTTP 503)
        ├── StoppingError              the server ends after the requests that it has; try another (HTTP 503)
        └── OverloadedError            no room to queue the request now; try later (HTTP 429)

Every message says what was given, what is allowed, and what to do. Library errors are translated into this tree where
they are met; nothing above that edge catches a library's own exceptions.
"""

from __future__ import annotations


class StrataError(Exception):
    """Root of every error that Strata raises on purpose."""


class UsageError(StrataError):
    """The caller must change something; trying again unchanged fails again."""


class OptionError(UsageError):
    """A flag, field or environment variable is unknown or out of range."""


class CheckpointError(UsageError):
    """A model's files are missing, truncated, altered, or not a model at all. Names the file."""


class UnsupportedModelError(CheckpointError):
    """The checkpoint is sound, but its architecture or tensor type is not one that Strata runs."""


class UnfetchedError(CheckpointError):
    """The model is on the Hub, and what was to be known of it stands in weights that are not here yet."""


class StorageError(UsageError):
    """A place on disk cannot be written, or has not the room that is needed. Names the place."""


class HardwareError(UsageError):
    """The device that was asked for is not there, or has not the memory that was asked for."""


class RequestError(UsageError):
    """An API request that cannot be served as it stands.

    ``param`` names the offending field as OpenAI's error object does; ``code`` is its short machine-readable name.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class UnknownModelError(RequestError):
    """The request names a model that this server does not serve."""


class EngineError(StrataError):
    """The engine failed; the request may be sound."""


class NotReadyError(EngineError):
    """The model is still loading; the same request may succeed later."""


class StoppingError(EngineError):
    """The server takes no more requests, since it ends; another may take this one."""


class OverloadedError(EngineError):
    """The waiting queue is full; the same request may succeed later."""
