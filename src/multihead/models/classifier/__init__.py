"""Classifier."""
