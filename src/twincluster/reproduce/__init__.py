"""The tables and figures of "You Never Cluster Alone", made again: the trainings each needs, and what is made of them.

A training is a `twincluster fit` of its own, whose command is shown. Runs are kept, and shared by all that need them.
"""
