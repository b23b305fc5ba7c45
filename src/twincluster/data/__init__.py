"""From a source to pixels: listing, decoding, the cache of decoded images, augmentation, batches."""

from twincluster.core import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
