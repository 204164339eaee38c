"""Op-trees as CUDA kernels: words for ops, the text of a stage, the driver that runs it, and a simulated one."""
