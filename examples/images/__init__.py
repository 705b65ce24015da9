"""An image classifier, its training pictures and plots of its maps."""
