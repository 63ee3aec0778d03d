"""What a trained model can do and how well."""
