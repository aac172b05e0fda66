"""Cost model shared by the catalogs: the larger of memory time and arithmetic time, plus the launch."""

from __future__ import annotations

from hybrid_humming.device import DeviceInfo
from hybrid_humming.dtypes import parse_format
from hybrid_humming.spec import Problem


def problem_bytes(problem: Problem) -> int:
    """Return the bytes that a GEMM must move once: packed weight, x, y and bias."""
    spec, (m, n, k) = problem.spec, (problem.m, problem.n, problem.k)
    x_bytes = m * k * spec.activation_format.bits // 8
    y_bytes = m * n * parse_format(spec.out_dtype or "bf16").bits // 8
    return spec.weight_bytes(n, k) * max(1, problem.experts) + x_bytes + y_bytes + (4 * n if problem.bias else 0)


def roofline_us(
    device: DeviceInfo, *, moved_bytes: float, ops: float, operand: str, memory_share: float = 1.0, math_share: float = 1.0
) -> float:
    """Return the larger of both times in microseconds; the shares are what a kernel reaches of the device's peaks."""
    rate = device.rate(operand) or device.rate("fp32") or 1.0
    memory = moved_bytes / (device.dram_gbps * memory_share) * 1e-3
    math = ops / (rate * math_share) * 1e-6
    return max(memory, math) + device.launch_us


def bound_by(problem: Problem, device: DeviceInfo, operand: str) -> str:
    """Return "memory" or "compute": which of the two roofs is nearer for this problem."""
    memory = problem_bytes(problem) / device.dram_gbps * 1e-3
    rate = device.rate(operand) or device.rate("fp32") or 1.0
    return "memory" if memory >= 2.0 * problem.m * problem.n * problem.k / rate * 1e-6 else "compute"
