"""CUDA C++ and CuTe DSL kernels of hybrid_humming (import as ``hybrid_humming.cuda_kernels``)."""

if __name__ != "hybrid_humming.cuda_kernels":
    raise ImportError(f"imported as {__name__!r}; this folder is hybrid_humming.cuda_kernels (the bare name is another package's)")
