"""A finished run as something to look at: one offline page, and figures.

`material` opens a run, `gather` makes the page's data of it, `page` puts both into one file; the same data and the same
scripts can be served to a browser piece by piece.
"""
