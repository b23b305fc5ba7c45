"""The report of a run as one offline HTML file."""
