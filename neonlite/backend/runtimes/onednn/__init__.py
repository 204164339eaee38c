"""oneDNN primitives for NumPy arrays: convolution, pooling, batch norm, matmul, recurrent layers and eltwise chains."""
