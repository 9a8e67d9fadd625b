"""What the attention kernels share: tiles of rows, their logits, the online softmax, the output."""
# mypy: disable-error-code="untyped-decorator,no-untyped-call,no-untyped-def,operator,misc"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows_of(base, row, held, WIDTH: tl.constexpr, BLOCK: tl.constexpr, WIDEN: tl.constexpr):
    """Return (rows, BLOCK): rows of a matrix of this width, 0 where none is held.

    WIDEN: in float32, since the interpreter's dot knows no bfloat16.
    """
    column = tl.arange(0, BLOCK)
    found = tl.load(
        base + row[:, None] * WIDTH + column[None, :],
        mask=held[:, None] & (column < WIDTH)[None, :],
        other=0.0,
    )
    if WIDEN:
        found = found.to(tl.float32)
    return found


@triton.jit
def capped(logits, cap):
    """Return cap tanh(logits / cap)."""
    # tanh(x) = 2 / (1 + exp(-2 x)) - 1
    return cap * (2.0 / (1.0 + tl.exp(-2.0 * logits / cap)) - 1.0)


@triton.jit
def begin(ROWS: tl.constexpr, WIDTH: tl.constexpr, ZERO: tl.constexpr):
    """Return (top, total, acc) of rows that saw nothing; ZERO: one key of logit 0 and value 0."""
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, WIDTH), tl.float32)
    if ZERO:
        top = tl.zeros((ROWS,), tl.float32)
        total = total + 1.0
    return top, total, acc


@triton.jit
def see(top, total, acc, logits, values):
    """Return (top, total, acc) after a tile of keys; top counts in powers of two.

    logits: (rows, keys), -inf where a row does not see a key. values: (keys, WIDTH).
    """
    logits = logits * 1.4426950408889634
    now = tl.maximum(top, tl.max(logits, 1))
    shift = tl.where(now == float("-inf"), 0.0, now)
    weights = tl.exp2(logits - shift[:, None])
    shrink = tl.exp2(top - shift)
    total = total * shrink + tl.sum(weights, 1)
    acc = acc * shrink[:, None]
    acc += tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return now, total, acc


@triton.jit
def put(out, row, held, total, acc, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Write acc / total, 0 for rows that saw nothing."""
    column = tl.arange(0, BLOCK)
    tl.store(
        out + row[:, None] * WIDTH + column[None, :],
        acc / tl.where(total > 0, total, 1.0)[:, None],
        mask=held[:, None] & (column < WIDTH)[None, :],
    )


@triton.jit
def log_sum(top, total):
    """Return log sum exp of the logits that were seen, -inf where none was."""
    logged = (top + tl.log2(tl.where(total > 0, total, 1.0))) * 0.6931471805599453
    return tl.where(total > 0, logged, float("-inf"))
