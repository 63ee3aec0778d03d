"""Data on disk: what a user has, the store it becomes, and the order in which it is read."""
