"""Pre-training a BERT on plain text, and filling in hidden words."""
