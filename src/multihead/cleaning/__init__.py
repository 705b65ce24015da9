"""Cleaning of parallel corpora: each removed pair has a reason."""
