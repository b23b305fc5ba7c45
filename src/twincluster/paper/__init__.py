"""Reproduce the tables and figures of "You Never Cluster Alone"."""

from twincluster.core import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
