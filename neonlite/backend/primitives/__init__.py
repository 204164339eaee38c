"""What should no op-tree spell?  Convolutions, pooling, products into a given tensor: called, and run at once."""
