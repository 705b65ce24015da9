"""Bert."""
