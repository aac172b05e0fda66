"""Gluon kernels for SM90 and 8-bit activations: W8A8 from shared memory, narrower weights decoded into FP8 or INT8 registers."""
