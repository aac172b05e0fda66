"""Compiling and launching kernels; the only place that does either."""
