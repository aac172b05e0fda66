"""Plain Triton kernels on the portable layout: every format, every SM, and the CPU interpreter."""
