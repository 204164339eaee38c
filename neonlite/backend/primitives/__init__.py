"""Primitives: convolution, pooling, normalization, RoI pooling and matrix products, run immediately on tensors."""
