"""Translator."""
