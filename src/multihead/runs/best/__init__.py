"""Training a translator in stages: models, and their students."""
