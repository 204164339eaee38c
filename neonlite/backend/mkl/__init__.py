"""What makes the runtime 'mkl' fast?  Matrix products in Intel's MKL, called through ctypes."""
