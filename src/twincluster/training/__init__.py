"""The training loop, with its schedule, checkpoints, metrics and progress."""

from twincluster.core import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
