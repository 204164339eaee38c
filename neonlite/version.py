"""The version of neonlite."""

__version__ = "0.1.0"
