"""A page that shows what runs have learned."""
