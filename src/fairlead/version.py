"""The version of this release, in a module without imports so that every part can read it."""

__version__ = "0.2.0"
