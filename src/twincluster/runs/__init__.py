"""The run folder: its files, its rows, how it came about, and the edits that people made to it."""

from twincluster.core import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
