"""The checks of multihead doctor: text, subwords and networks."""
