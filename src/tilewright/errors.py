"""The errors that tilewright raises; each message names the cause and the fix.

::

    TilewrightError
    ├── ConfigError            the configuration, a table, or an option of a command
    ├── RawDataError           raw files
    ├── BrokenTiffError        no TIFF, or one that ends too early
    ├── ResultFileError        a file of results is not what was written
    ├── ProcessingError        a stage cannot process what it was given
    │   └── MismatchError      two cycles do not show the same tissue
    ├── QualityError           items failed, and the configuration says to stop
    └── DeviceError            a device cannot be used
        ├── DeviceMemoryError  its memory does not hold the smallest part of the work
        ├── LeaseError         the folder of leases and failures cannot be used
        ├── NoDeviceError      no device of this machine gets jobs
        └── LeaseTimeoutError  no device became free in time
"""


class TilewrightError(Exception):
    """Base of all errors of tilewright; of words of others no terminal is changed."""

    def __str__(self) -> str:
        text = super().__str__()
        return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


class ConfigError(TilewrightError, ValueError):
    """The configuration, a table or an option is wrong; one argument a problem."""

    def __str__(self) -> str:
        if len(self.args) == 1:
            return super().__str__()
        listed = (str(TilewrightError(one)).replace("\n", "\n    ") for one in self.args)
        return f"{len(self.args)} problems:" + "".join(f"\n  - {text}" for text in listed)


class RawDataError(TilewrightError, ValueError):
    """Raw files cannot be used."""


class BrokenTiffError(TilewrightError, ValueError):
    """The file is no TIFF, or ends before what its header promises."""


class ResultFileError(TilewrightError, ValueError):
    """A file of results cannot be read or written, or is not what was written."""


class ProcessingError(TilewrightError, ValueError):
    """A stage cannot process what it was given."""


class MismatchError(ProcessingError):
    """The two cycles do not show the same tissue; the message says by how much."""


class QualityError(TilewrightError):
    """Items failed, and the configuration says to stop."""


class DeviceError(TilewrightError, RuntimeError):
    """A device cannot be used."""


class DeviceMemoryError(DeviceError):
    """The device's memory does not hold even the smallest part of the work."""


class LeaseError(DeviceError):
    """The folder of leases and failures cannot be used."""


class NoDeviceError(DeviceError):
    """No device of this machine gets jobs."""


class LeaseTimeoutError(DeviceError, TimeoutError):
    """No device became free within the wait limit."""
