"""Settings of a run: the schema, a user's words as settings, and recipes."""

from twincluster.core import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
