"""Clustering methods and their registry. The training loop knows only the contract in `base`."""

from twincluster.core import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
