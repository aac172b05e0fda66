"""When a call has to go through torch's dispatcher: while someone watches ops, or a gradient is wanted."""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def needs_dispatcher(x: Tensor, *others: Tensor | None) -> bool:
    """True while someone watches ops (compile, export, fake tensors, modes, subclasses) or a gradient of a tensor is wanted.

    Everyone else calls the implementation directly: the dispatcher and the autograd wrapper cost some 40 us a call in Python.
    """
    return (
        torch.compiler.is_compiling()
        or type(x) is not Tensor
        or (torch.is_grad_enabled() and (x.requires_grad or any(t is not None and t.requires_grad for t in others)))
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._len_torch_function_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
    )
