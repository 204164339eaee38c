"""The neonlite command: train, eval, predict, sample, draw, bench, info."""

from neonlite.cli.command_line import main

__all__ = ["main"]
