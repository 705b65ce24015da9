"""Reports: what a run has learned, and what more data would gain."""
