"""Networks and their parts: backbones, pretrained encoders, queues, batch-norm, random draws, kernels."""

from twincluster.core import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
