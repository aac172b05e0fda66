"""Blackwell's tensor memory in CUDA C++, and the same source's sibling on Hopper; a kernel for few rows by mma.sync."""
