"""neon's argument overloads and names that nothing else needs."""
