"""Recurrent encoder-decoders with attention."""
