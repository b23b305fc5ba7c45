"""The pages of a run: the report in one file, and the explorer in a browser."""

from twincluster.core import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
