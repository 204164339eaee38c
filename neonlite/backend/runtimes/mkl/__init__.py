"""Matrix products by Intel MKL for the runtime "mkl"."""
