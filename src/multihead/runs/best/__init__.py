"""Training a translator in stages: models that teach a last one."""
