"""Tessera's training from Python."""

from importlib import metadata

__version__ = metadata.version("tessera-train")
