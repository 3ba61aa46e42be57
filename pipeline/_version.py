"""The version that requests, segments and dead letters carry: that of the installed build, with its commit."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("reknit")
except PackageNotFoundError:  # run from a folder that nobody installed
    __version__ = "0+unknown"
