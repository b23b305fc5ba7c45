"""Taking the result of a run along: tables, folders of images, the network for other programs, a model to share.

One file for each kind; all but the networks show the clusters as a person has corrected them.
"""
