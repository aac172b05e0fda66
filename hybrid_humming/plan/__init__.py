"""Planning: Problem x PackLayout x DeviceInfo -> Plan, with no tensors and no kernel module."""

from hybrid_humming.plan.choose import check_plan, choose_layout, choose_plan, fitting, m_bucket, survey
from hybrid_humming.plan.explain import Explanation, explain_problem
from hybrid_humming.plan.fallback import fallback_table, operand_format
from hybrid_humming.plan.types import Candidate, KernelEntry, LayoutEntry, Plan, QuantizerEntry, Rejection, Tile

__all__ = [
    "Candidate",
    "Explanation",
    "KernelEntry",
    "LayoutEntry",
    "Plan",
    "QuantizerEntry",
    "Rejection",
    "Tile",
    "check_plan",
    "choose_layout",
    "choose_plan",
    "explain_problem",
    "fallback_table",
    "fitting",
    "m_bucket",
    "operand_format",
    "survey",
]
