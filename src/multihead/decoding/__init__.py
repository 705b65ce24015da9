"""Search over anything that can step."""
