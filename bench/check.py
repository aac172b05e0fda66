"""Is an output right? The gate in front of every timing.

    truth   float64 of the unrounded codes x scales, same x
    torch   x @ bf16(dequantize W).T, the same x rounded to bf16 where it was quantized
    passes  finite everywhere after the output was poisoned with NaN, |y - truth| <= 2 * |torch - truth| in the L2 norm, and no
            row nor single output that stands out beside torch's (one wrong tile hides in a norm over everything)

A peer quantizes by its own rule, so its output is held against the float weight: its error may be at most twice ours.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

Tensor = torch.Tensor

FULL_ROWS = 1024  # above it, the float64 product takes this many rows spread over M; the cheap comparison takes them all
ROW = 6.0  # times torch's error, in the L2 norm of one row
OUTPUT = 0.15  # of a row's root mean square: ten times what rounding to bf16 does to the largest output of a row


@dataclass(frozen=True, kw_only=True)
class Check:
    """What a comparison found: errors are relative, in the L2 norm."""

    passed: bool
    err_l2: float
    torch_err_l2: float
    reason: str = ""


class Judge:
    """Holds one weight's truth. `exact` [N, K] float64 and `rounded` [N, K] bf16 or fp16 are the dequantized weight."""

    def __init__(self, exact: Tensor, rounded: Tensor) -> None:
        self.exact, self.rounded = exact, rounded

    def ours(self, y: Tensor, x: Tensor) -> Check:
        """Check y [M, N] against x [M, K] (float32 or float64 values of the x that was multiplied)."""
        if not bool(torch.isfinite(y).all()):
            bad = int((~torch.isfinite(y)).sum())
            return Check(
                passed=False, err_l2=float("inf"), torch_err_l2=0.0, reason=f"{bad} outputs were not written or not finite"
            )
        library = x.to(self.rounded.dtype) @ self.rounded.T
        rows = _rows(y.shape[0], y.device)
        truth = x[rows].double() @ self.exact.T
        err, torch_err = _l2(y[rows], truth), _l2(library[rows], truth)
        if not err <= 2 * torch_err:
            return Check(
                passed=False, err_l2=err, torch_err_l2=torch_err, reason=f"error {err:.2e} is over twice torch's {torch_err:.2e}"
            )
        reason = _stands_out(y.float(), library.float(), torch_err)
        if reason:
            return Check(passed=False, err_l2=err, torch_err_l2=torch_err, reason=reason)
        return Check(passed=True, err_l2=err, torch_err_l2=torch_err)


def peer(y: Tensor, y_ours: Tensor, x: Tensor, weight: Tensor) -> Check:
    """Check a peer's y [M, N] against x [M, K] @ weight [N, K].T of the float weight, with our own error as the measure."""
    rows = _rows(y.shape[0], y.device)
    want = x[rows].float() @ weight.float().T
    err, own = _l2(y[rows], want), _l2(y_ours[rows], want)
    passed = bool(torch.isfinite(y).all()) and err <= 2 * own + 5e-3
    return Check(passed=passed, err_l2=err, torch_err_l2=own, reason="" if passed else f"error {err:.2e} beside our {own:.2e}")


def _stands_out(y: Tensor, library: Tensor, torch_err: float) -> str:
    """Return which row or output of y [M, N] is far from the library's, or an empty string."""
    apart, size = y - library, library.norm(dim=1).clamp_min(1e-30)
    by_row = apart.norm(dim=1) / size
    row = int(by_row.argmax())
    if not float(by_row[row]) <= ROW * torch_err:
        return f"row {row} is {float(by_row[row]):.2e} from torch's, over {ROW:g} times its error of {torch_err:.2e}"
    by_output = apart.abs() / (size[:, None] / y.shape[1] ** 0.5)
    worst = int(by_output.argmax())
    if not float(by_output.max()) <= OUTPUT:
        row, column = divmod(worst, y.shape[1])
        return f"y[{row}, {column}] is {float(y[row, column]):.4g}, torch's {float(library[row, column]):.4g}"
    return ""


def _rows(m: int, device: torch.device) -> Tensor:
    if m <= FULL_ROWS:
        return torch.arange(m, device=device)
    return torch.linspace(0, m - 1, FULL_ROWS, device=device).round().long()


def _l2(y: Tensor, truth: Tensor) -> float:
    """Return |y - truth| / |truth|; NaN in either gives NaN, which passes no comparison."""
    return float((y.to(truth.dtype) - truth).norm() / truth.norm().clamp_min(1e-30))
