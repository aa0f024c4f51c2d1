"""Proves a variant by reading it: names, bytes, scales and configuration, against the source and outside references."""

from draftmill_worker.verify.run import verify

__all__ = ["verify"]
