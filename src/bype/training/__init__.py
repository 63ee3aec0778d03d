"""Training: one step, validation, updates, and the loop that brings them together."""
