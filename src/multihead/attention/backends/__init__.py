"""The backends of attention: one file each, and what they share.

`call` describes a call and says what a backend is; `explicit` is the readable reference, and `sdpa`, `blockwise`,
`short`, `long`, `flex` and `varlen` compute the same faster. :mod:`multihead.attention.functional` chooses among them.
"""
