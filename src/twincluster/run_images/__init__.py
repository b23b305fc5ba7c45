"""The images behind the rows of a finished run, and its evaluation."""

from twincluster.core import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
