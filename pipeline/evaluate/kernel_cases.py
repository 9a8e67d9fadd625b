"""What each kernel is timed on: itself first, then what a person would write instead.

A case draws its inputs, checks its contenders against double precision or an explicit formula,
and returns them with what was checked. Sizes are those of a laptop; `make bench OP=<kernel>` of a
checkout goes further, with floors and more shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from foveate.pipeline.evaluate import peers
from foveate.pipeline.evaluate.bench import BenchError

if TYPE_CHECKING:
    from torch import Tensor

Contenders = dict[str, Callable[[], Any]]
Case = tuple[Contenders, str]
Has = Callable[[str], bool]
"""has(peer) -> whether it is to be timed too"""

LEAST = 1e-5


def agree(name: str, got: Tensor, want: Tensor, most: float = LEAST) -> str:
    """Return the RMS of the error over that of what was wanted, in words.

    Raises:
        BenchError: if it is above the most that is allowed.
    """
    got, want = got.double(), want.double()
    error = float(((got - want).pow(2).mean() / want.pow(2).mean()).sqrt())
    if not error <= most:
        raise BenchError(f"{name}: RMS error {error:.1e} is above {most:.0e}")
    return f"RMS error {error:.0e}"


def ragged(n: int, longest: int, dim: int, *, least: int = 1) -> tuple[Tensor, Tensor]:
    """Return (t, dim) unit rows and the (n+1,) offsets of n items of least..longest rows."""
    import torch

    lengths = torch.randint(least, longest + 1, (n,))
    offsets = torch.cat([lengths.new_tensor([0]), lengths.cumsum(0)])
    return torch.nn.functional.normalize(torch.randn(int(offsets[-1]), dim), dim=1), offsets


def maxsim(has: Has) -> Case:
    """1,000 documents of 300 tokens of 128 dimensions, a query of 32."""
    import torch

    from foveate.kernels.documents import Documents, quantise
    from foveate.kernels.maxsim import maxsim

    tokens, offsets = ragged(1000, 300, 128, least=300)
    queries = torch.nn.functional.normalize(torch.randn(32, 128), dim=1)
    documents, codes = Documents(tokens, offsets), quantise(tokens, offsets, "int8")
    padded = tokens.view(1000, 300, 128)

    def einsum() -> Tensor:
        return torch.einsum("qd,ntd->nqt", queries, padded).amax(2).sum(1)

    want = einsum()[None]
    check = agree("maxsim", maxsim(queries, documents), want)
    contenders: Contenders = {
        "maxsim": lambda: maxsim(queries, documents),
        "maxsim, int8": lambda: maxsim(queries, codes),
        "torch einsum": einsum,
    }
    if has("maxsim-cpu"):
        score = peers.maxsim_cpu()
        rows = [row.numpy() for row in padded]
        found = torch.as_tensor(score(queries.numpy(), rows))[None]
        agree("maxsim-cpu", found, want, 1e-4)
        contenders["maxsim-cpu"] = lambda: score(queries.numpy(), rows)
    if has("pylate"):
        late = peers.pylate_scores()
        agree("pylate", late(queries[None], padded), want, 1e-4)
        contenders["pylate"] = lambda: late(queries[None], padded)
    return contenders, check


def attention(has: Has) -> Case:
    """14 heads over 2 key heads, 1,024 tokens, causal."""
    import torch

    from foveate.kernels import masks
    from foveate.kernels.attention import attention, attention_reference

    t = 1024
    q, k, v = torch.randn(14, t, 64), torch.randn(2, t, 64), torch.randn(2, t, 64)
    mask = masks.causal(t, t)
    want, _ = attention_reference(q.double(), k.double(), v.double(), mask)
    check = agree("attention", attention(q, k, v, mask), want)
    return {
        "attention": lambda: attention(q, k, v, mask),
        "explicit formula": lambda: attention_reference(q, k, v, mask),
        "torch, causal": lambda: torch.nn.functional.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, enable_gqa=True
        ),
    }, check


def block_attention(has: Has) -> Case:
    """A prompt of 40 passages that do not see each other, about 4,000 tokens."""
    import torch

    from foveate.kernels import masks
    from foveate.kernels.attention import attention_reference
    from foveate.kernels.block_attention import block_attention, block_scores

    lengths = torch.cat([torch.tensor([30]), torch.randint(50, 150, (40,)), torch.tensor([20])])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    t = int(offsets[-1])
    q, k, v = torch.randn(14, t, 64), torch.randn(2, t, 64), torch.randn(2, t, 64)
    want, _ = attention_reference(
        q[:1].double(), k[:1].double(), v[:1].double(), masks.block_rank(offsets)
    )
    check = agree("block_attention", block_attention(q, k, v, offsets)[:1], want)
    stored, places = k[:, int(offsets[1]) : int(offsets[-2])].contiguous(), offsets[1:-1] - 30
    rows = q[:, -2:].contiguous()
    return {
        "block_attention": lambda: block_attention(q, k, v, offsets),
        "scores of stored keys": lambda: block_scores(rows, stored, places),
        "torch, causal": lambda: torch.nn.functional.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True, enable_gqa=True
        ),
    }, check


def pooled_attention(has: Has) -> Case:
    """300 items of 1..256 patches, 16 queries."""
    import torch

    from foveate.kernels.pooled_attention import pooled_attention

    patches, offsets = ragged(300, 256, 384)
    q = torch.randn(16, 384)

    def padded(q: Tensor, patches: Tensor) -> Tensor:
        parts = list(torch.split(patches, offsets.diff().tolist()))
        stacked = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
        shown = torch.arange(stacked.shape[1]) < offsets.diff()[:, None]
        return torch.nn.functional.scaled_dot_product_attention(
            q.expand(len(parts), *q.shape), stacked, stacked, attn_mask=shown[:, None]
        )

    want = padded(q.double(), patches.double())
    check = agree("pooled_attention", pooled_attention(q, patches, patches, offsets), want)
    return {
        "pooled_attention": lambda: pooled_attention(q, patches, patches, offsets),
        "torch, padded": lambda: padded(q, patches),
    }, check


def window_attention(has: Has) -> Case:
    """2,048 tokens in 5 documents, each seeing 20 to either side."""
    import torch

    from foveate.kernels import masks
    from foveate.kernels.window_attention import window_attention

    t, reach = 2048, 20
    q, k, v = (torch.randn(4, t, 64) for _ in range(3))
    offsets = torch.tensor([0, 300, 800, 1100, 1700, t])
    dense = masks.dense(
        masks.both(masks.window(t, reach, reach), masks.packed(offsets, offsets)), t
    )

    def explicit(*x: Tensor) -> Tensor:
        q, k, v = (y[None] for y in x)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=dense)[0]

    def ours() -> Tensor:
        return window_attention(q, k, v, offsets, before=reach, after=reach)

    check = agree("window_attention", ours(), explicit(q.double(), k.double(), v.double()))
    return {"window_attention": ours, "torch, explicit mask": lambda: explicit(q, k, v)}, check


def topk_attention(has: Has) -> Case:
    """2,048 tokens, each reading its 64 best keys."""
    import torch

    from foveate.kernels.topk_attention import topk_attention

    q, k, v = (torch.randn(2, 2048, 64) for _ in range(3))

    def whole(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = q @ k.transpose(1, 2) / 8.0
        best = logits.topk(64, dim=2)
        kept = torch.full_like(logits, -torch.inf).scatter(2, best.indices, best.values)
        return kept.softmax(2) @ v

    check = agree(
        "topk_attention", topk_attention(q, k, v, 64), whole(q.double(), k.double(), v.double())
    )
    return {
        "topk_attention": lambda: topk_attention(q, k, v, 64),
        "torch, whole matrix": lambda: whole(q, k, v),
    }, check


def moba(has: Has) -> Case:
    """4,096 tokens, each reading 3 blocks of 256."""
    import torch

    from foveate.kernels import masks
    from foveate.kernels.attention import attention
    from foveate.kernels.moba import gates, moba, moba_reference

    t = 4096
    q, k, v = (torch.randn(2, t, 64) for _ in range(3))
    a, b, c = (x[:1, :1024] for x in (q, k, v))
    picked = gates(a, b, 256, 3)
    want = moba_reference(a.double(), b.double(), c.double(), picked, 256)
    check = agree("moba", moba(a, b, c, block=256, top=3), want)
    causal = masks.causal(t, t)
    return {
        "moba": lambda: moba(q, k, v, block=256, top=3),
        "attention to all": lambda: attention(q, k, v, causal),
    }, check


def quantised_score(has: Has) -> Case:
    """2,048 tokens in topics; blocks of little weight by 4-bit scores are skipped."""
    import torch

    from foveate.kernels import masks
    from foveate.kernels.attention import attention
    from foveate.kernels.quantised_score import quantised_score

    t = 2048
    at = torch.arange(t) // 128
    topics = 1.5 * torch.randn(2, t // 128 + 1, 64)
    q, k = (topics[:, rows] + torch.randn(2, t, 64) for rows in (at // 2, at))
    v = torch.randn(2, t, 64)
    causal = masks.causal(t, t)
    want = attention(q.double(), k.double(), v.double(), causal)
    check = agree("quantised_score", quantised_score(q, k, v, tau=0.0)[0], want)
    return {
        "quantised_score": lambda: quantised_score(q, k, v),
        "attention to all": lambda: attention(q, k, v, causal),
    }, f"at tau 0 {check}"


def sign_index(has: Has) -> Case:
    """One row over 32,768 keys, 1,024 of them found by their signs."""
    import torch

    from foveate.kernels.attention import attention
    from foveate.kernels.sign_index import indexed_attention, sign_index

    t = 32768
    q, k, v = torch.randn(14, 1, 64), torch.randn(2, t, 64), torch.randn(2, t, 64)
    index = sign_index(k)
    want = attention(q.double(), k.double(), v.double())
    check = agree("sign_index", indexed_attention(q, k, v, index, t), want)
    return {
        "sign_index": lambda: indexed_attention(q, k, v, index, 1024),
        "attention to all": lambda: attention(q, k, v),
    }, f"with every key {check}"


def team_attention(has: Has) -> Case:
    """4 rows over 32,768 keys in teams, 64 teams drawn."""
    import torch

    from foveate.kernels.team_attention import make_teams, team_attention

    t = 32768
    q = torch.randn(4, 64)
    near = torch.randn(t // 8 + 1, 64).repeat_interleave(8, 0)[:t]
    k, v = (0.3 * torch.randn(t, 64) + x for x in (near, near[:, :1] + 1.0))
    teams = make_teams(k)
    want = torch.softmax(q.double() @ k.double().T / 8.0, 1) @ v.double()
    check = agree("team_attention", team_attention(q, k, v, teams, t), want)
    return {
        "team_attention": lambda: team_attention(q, k, v, teams, 64),
        "torch, all keys": lambda: torch.softmax(q @ k.T / 8.0, 1) @ v,
    }, f"with every team {check}"


def sinkhorn(has: Has) -> Case:
    """100 documents of 1..30 sentence vectors against a query of 12."""
    import torch

    from foveate.kernels.sinkhorn import sinkhorn

    docs, offsets = ragged(100, 30, 384)
    q = torch.nn.functional.normalize(torch.randn(12, 384), dim=1)
    want = sinkhorn(q.double(), docs.double(), offsets, tolerance=1e-9)
    check = agree("sinkhorn", sinkhorn(q, docs, offsets), want, 1e-3)
    return {
        "sinkhorn": lambda: sinkhorn(q, docs, offsets),
        "one document at a time": lambda: sinkhorn(q, docs, offsets, backend="reference"),
    }, check


def infonce(has: Has) -> Case:
    """2,048 pairs of 384 dimensions, forward and backward."""
    import torch

    from foveate.kernels.infonce import infonce, infonce_reference

    rows = torch.nn.functional.normalize(torch.randn(2, 2048, 384), dim=2)
    own = torch.arange(2048)

    def learn(tiled: bool) -> Tensor:
        q, docs = (x.detach().clone().requires_grad_() for x in rows)
        loss = infonce(q, docs) if tiled else infonce_reference(q, docs, own, 0.05)
        found: tuple[Tensor, ...] = torch.autograd.grad(loss, q)
        return found[0]

    check = agree("infonce", learn(True), learn(False))
    return {"infonce": lambda: learn(True), "whole matrix": lambda: learn(False)}, check


CASES: dict[str, Callable[[Has], Case]] = {
    case.__name__: case
    for case in (
        attention,
        block_attention,
        infonce,
        maxsim,
        moba,
        pooled_attention,
        quantised_score,
        sign_index,
        sinkhorn,
        team_attention,
        topk_attention,
        window_attention,
    )
}
