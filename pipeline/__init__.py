"""Speculative decoding as a build-and-deploy pipeline. Nothing in this package but `serving` knows Triton."""

__version__ = "0.1.0"
