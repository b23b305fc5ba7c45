"""From features to clusters, as functions of arrays: k-means, sizes, the number of clusters, scores."""

from twincluster.core import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)
