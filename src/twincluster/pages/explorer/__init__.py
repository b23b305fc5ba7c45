"""`twincluster serve`: browse the clusters of a run and correct them."""
