"""Generated toy data, apart from the readers of real files.

`numbers` is the corpus of `multihead demo`, made from CLDR; `pointing` generates the problems of pointer networks, with
the geometry of `planar`. The answers are computed, so that models can be tested without downloading anything.
"""
