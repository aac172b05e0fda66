"""Planning: Problem x PackLayout x DeviceInfo -> Plan, with no tensors and no kernel module."""

from hybrid_humming.plan.types import Candidate, KernelEntry, LayoutEntry, Plan, Rejection, Tile

__all__ = ["Candidate", "KernelEntry", "LayoutEntry", "Plan", "Rejection", "Tile"]
