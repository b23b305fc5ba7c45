"""Several processes that train one run: who speaks, who writes, and how they agree."""

from twincluster.core import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
