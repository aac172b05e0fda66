"""Quantize activations on the GPU: codes and scales in one pass over x, bit for bit as hybrid_humming.reference does it."""
