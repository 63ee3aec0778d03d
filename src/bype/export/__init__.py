"""Trained models for use without torch."""
