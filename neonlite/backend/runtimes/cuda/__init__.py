"""CUDA code generation and execution: kernel templates, fused kernels, primitives, CuPy driver, CPU simulator."""
