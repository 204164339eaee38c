"""Op-trees as CUDA kernels, and primitives: words for ops, texts, the driver that runs them, and a simulated one."""
