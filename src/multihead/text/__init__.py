"""Text to subword ids and back; knows nothing of torch."""
