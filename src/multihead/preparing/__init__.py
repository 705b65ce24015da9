"""Preparing."""
