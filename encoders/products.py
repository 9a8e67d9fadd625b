"""Matrix products with fixed weights, packed once where the processor's library can.

On the processor in bfloat16 oneDNN keeps a weight in the layout that its products read, adds bias
and residual and applies GELU while the result is in registers. torch reaches that by operators of
its own compiler (`torch.ops.mkldnn`), which may change: what they give is checked once, and where
they are missing or wrong the plain products serve.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_ROWS = 512  # that a packed weight is laid out for


class Product:
    """x W + b for a fixed (inputs, outputs) weight and (outputs,) bias or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """Return (t, outputs). x: (t, inputs) of the weight's type."""
        import torch

        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)

    def gelu(self, x: Tensor, approximate: str = "none") -> Tensor:
        """Return (t, outputs): GELU of the product. approximate: 'none' or 'tanh'."""
        import torch

        return torch.ops.aten.gelu_(self(x), approximate=approximate)  # type: ignore[no-any-return]

    def onto(self, y: Tensor, x: Tensor) -> Tensor:
        """Return y + x W; y may be overwritten."""
        return y.addmm_(x, self.weight)


class Packed(Product):
    """The same by oneDNN, bfloat16 on the processor."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        import torch

        rows = weight.t().contiguous()
        super().__init__(torch.ops.mkldnn._reorder_linear_weight(rows, _ROWS), bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self._run(x, "none", "")

    def gelu(self, x: Tensor, approximate: str = "none") -> Tensor:
        return self._run(x, "gelu", approximate)

    def onto(self, y: Tensor, x: Tensor) -> Tensor:
        import torch

        run = torch.ops.mkldnn._linear_pointwise.binary
        return run(x, y, self.weight, None, "add")  # type: ignore[no-any-return]

    def _run(self, x: Tensor, activation: str, detail: str) -> Tensor:
        import torch

        run = torch.ops.mkldnn._linear_pointwise
        return run(x, self.weight, self.bias, activation, [], detail)  # type: ignore[no-any-return]


def product(weight: Tensor, bias: Tensor | None = None) -> Product:
    """Return the fastest product of a weight that this machine has."""
    import torch

    packs = weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and packing_works()
    return Packed(weight, bias) if packs else Product(weight, bias)


@cache
def packing_works() -> bool:
    """Whether oneDNN's packed products are there and give what the plain ones give."""
    import torch

    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    with torch.inference_mode():
        draw = torch.Generator().manual_seed(0)
        x, weight, bias, y = (
            torch.randn(shape, generator=draw).to(torch.bfloat16)
            for shape in ((3, 64), (64, 32), (32,), (3, 32))
        )
        plain = Product(weight, bias)
        try:
            packed = Packed(weight, bias)
            pairs = [
                (packed(x), plain(x)),
                (packed.gelu(x), plain.gelu(x)),
                (packed.gelu(x, "tanh"), plain.gelu(x, "tanh")),
                (packed.onto(y.clone(), x), plain.onto(y.clone(), x)),
            ]
            return all(torch.allclose(a, b, rtol=0.05, atol=0.2) for a, b in pairs)
        except (AttributeError, RuntimeError, TypeError):
            return False
