"""The loss, the step, the loop and what it leaves on disk."""
