"""How does a plan run?  An executor turns a plan into a function of the targets' arrays and the leaves' values."""
