"""Fast search of a Transformer: compiled code, or CUDA graphs."""
