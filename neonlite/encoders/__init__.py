"""Encoders of fit(X, y): convert arrays, tables, texts, labels and numbers for a network, and outputs back."""
