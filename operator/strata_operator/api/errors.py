"""The one exception tree of the operator; the type decides whether a reconcile is tried again.

    OperatorError
    ├── InvalidSpecError        the object cannot be served as it stands; told in its conditions, not retried
    ├── ForeignObjectError      an object of a child's name belongs to someone else; told, looked at again later
    └── ApiError                the API server's answer
        ├── RefusedError        it understood and refused (4xx); told in the conditions, looked at again later
        ├── MissingError        there is no such object or resource (404)
        ├── LeavingError        the namespace or the model is being deleted; nothing can be made for it any more
        └── UnavailableError    no answer, or one that a retry may better (network, 409, 429, 5xx)

Every message says what was given, what is allowed, and what to do. Library errors are translated in ``cluster/client``.
"""

from __future__ import annotations


class OperatorError(Exception):
    """Root of every error that the operator raises on purpose."""


class InvalidSpecError(OperatorError):
    """A StrataModel whose spec this operator cannot serve; names the field."""


class ForeignObjectError(OperatorError):
    """A child's name is taken by an object that does not bear our owner's uid; names the object."""


class ApiError(OperatorError):
    """The API server did not do what was asked.

    ``status`` is the HTTP status, 0 where no answer came; ``answer`` is the server's own words without our context.
    """

    def __init__(self, message: str, *, status: int = 0, answer: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.answer = answer or message


class RefusedError(ApiError):
    """The API server refused; the same request fails again until somebody changes something."""


class MissingError(ApiError):
    """There is no such object, or the resource is not installed."""


class LeavingError(ApiError):
    """The namespace or the model is being deleted, and with it all that could be asked for."""


class UnavailableError(ApiError):
    """The API server could not answer now; the same request may succeed later."""
