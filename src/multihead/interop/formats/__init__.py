"""Formats of other programs, one file each

A reader returns `parts.TranslatorParts`, a writer takes them; `opening` finds the reader of a folder.
"""
