"""Text to subword ids and back; never imports torch."""
