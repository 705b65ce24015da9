"""Networks: attention and layers, wired."""
