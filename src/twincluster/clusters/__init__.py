"""From features to clusters: k-means and its relatives, how even clusters are, and how many there are."""
