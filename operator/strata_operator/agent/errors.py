"""What hardware answers, as exceptions: a branch of the operator's tree.

    OperatorError
    └── HardwareError             a card, the driver or the kernel did not do what was asked
        ├── DriverMissingError    no driver answers: not installed, not loaded, or not given to this container
        ├── DriverMismatchError   the driver was replaced while its library is in use here
        ├── NoPermissionError     only root may do that, or the container is not privileged
        ├── GpuLostError          the card fell off the bus, or is not there any more
        ├── UnsupportedError      this card does not have what was asked for
        ├── OutOfRangeError       the card does not take that value
        └── HungError             a call has not come back in time

Every message says what was asked of what, what came, and what to do. Library errors are translated in ``nvml`` and
``sysfs``.
"""

from __future__ import annotations

from strata_operator.api.errors import OperatorError


class HardwareError(OperatorError):
    """Root of all that hardware does not do."""


class DriverMissingError(HardwareError):
    """No driver answers."""


class DriverMismatchError(HardwareError):
    """The library here and the driver in the kernel are of different versions."""


class NoPermissionError(HardwareError):
    """The process may not do that."""


class GpuLostError(HardwareError):
    """The card does not answer any more."""


class UnsupportedError(HardwareError):
    """The card does not have that."""


class OutOfRangeError(HardwareError):
    """The card does not take that value."""


class HungError(HardwareError):
    """The driver has not answered in time; the thread that asks it is given up until it does."""
