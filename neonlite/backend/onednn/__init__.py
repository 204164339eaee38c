"""What makes images and functions fast on a CPU?  oneDNN, called through ctypes, on arrays of NumPy."""
