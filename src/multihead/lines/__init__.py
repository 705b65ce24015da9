"""Translate streams and files of lines, keeping their order."""
