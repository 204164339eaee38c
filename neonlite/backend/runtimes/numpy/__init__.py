"""The 'cpu' runtime: NumPy executor and primitives."""
