"""Models of other programs: import, export, proof that both sides agree

`formats` reads and writes files of other programs; nothing above it knows a format.
"""
