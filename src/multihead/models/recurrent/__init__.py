"""Recurrent translators: GRU or LSTM encoders and decoders."""
