"""Kernels for GPUs with mma.sync and cp.async and no wgmma: SM80, 86, 87, 89, 120 and 121. They share Hopper's device functions."""
