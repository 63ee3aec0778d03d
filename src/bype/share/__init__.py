"""Models to share: a folder without data, paths or names of machines, and the Hugging Face hub."""
