"""An image classifier, pictures to train it on and plots of its attention maps."""
