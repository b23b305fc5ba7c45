"""`twincluster serve RUN`: a local page to browse the clusters of a run and to correct them.

command.py is the command, server.py the addresses it answers, guard.py who may ask, library.py the run it shows.
"""
