"""Triton kernels of hybrid_humming (import as ``hybrid_humming.triton_kernels``)."""

if __name__ != "hybrid_humming.triton_kernels":
    raise ImportError(
        f"imported as {__name__!r}; this folder is hybrid_humming.triton_kernels (the bare name is Triton's own package)"
    )
