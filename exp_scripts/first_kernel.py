"""One kernel of torch and one of Triton, which Triton compiles with the machine's C compiler and
Python.h.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def _double(numbers, size: tl.constexpr):  # type: ignore[no-untyped-def]  # Triton reads the annotations
    places = tl.arange(0, size)
    tl.store(numbers + places, 2 * tl.load(numbers + places))


def run(device: str = "cuda") -> None:
    """Raises whatever the driver, torch or the compiler raises."""
    numbers = torch.ones(16, device=device)
    _double[(1,)](numbers, 16)
    if (total := numbers.sum().item()) != 32:
        raise RuntimeError(f"16 ones, doubled, add up to {total}")
