"""Every Triton kernel becomes a binary for two generations of GPU, without a GPU.

The interpreter proves the arithmetic; this proves that the compiler takes the code, that the tiles
fit into shared memory, and that no type is left open. What is launched is only compiled.
"""

import os

import pytest
import torch

from foveate.kernels.attention import Score, Softmax
from foveate.kernels.documents import Documents

triton = pytest.importorskip("triton", reason="triton is not installed here")

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing"
)

TYPES = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16",
    torch.int8: "*i8", torch.uint8: "*u8", torch.int32: "*i32", torch.int64: "*i64",
    torch.bool: "*i1",
}  # fmt: skip
# of each generation, what a block may have: CUDA's table of compute capabilities
SHARED_BYTES = {80: 163 << 10, 90: 227 << 10}
FLOATS = (torch.float32, torch.bfloat16)


@pytest.fixture(params=SHARED_BYTES)
def built(request, monkeypatch):
    """{kernel: how many variants of it were compiled}; launches compile for one generation."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    counts = {}

    def compiled(kernel, config, args, kwargs):
        given = dict(zip(kernel.arg_names, args, strict=False)) | kwargs | config.kwargs
        signature, constants = {}, {}
        for param in kernel.params:
            value = given[param.name]
            if param.is_constexpr or value is None or (isinstance(value, int) and value == 1):
                signature[param.name], constants[param.name] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[param.name] = TYPES[value.dtype]
            else:
                signature[param.name] = "fp32" if isinstance(value, float) else "i32"
        made = triton.compile(
            ASTSource(kernel, signature, constants),
            target=GPUTarget("cuda", request.param, 32),
            options={"num_warps": config.num_warps, "num_stages": config.num_stages},
        )
        assert len(made.asm["cubin"])
        assert made.metadata.shared <= SHARED_BYTES[request.param]
        counts[kernel.__name__] = counts.get(kernel.__name__, 0) + 1

    def tuned(self, *args, grid, warmup=False, **kwargs):
        # the smallest tiles on the one, the largest on the other; between them all compile alike
        compiled(self.fn, self.configs[0 if request.param == 80 else -1], args, kwargs)

    def plain(self, *args, grid, warmup=False, **kwargs):
        compiled(self, triton.Config({}), args, kwargs)

    monkeypatch.setattr(Autotuner, "run", tuned)
    monkeypatch.setattr(JITFunction, "run", plain)
    return counts


@pytest.fixture
def heads():
    """Return q (4, 40, d), k (2, 40, d), v (2, 40, e) of a type."""

    def make(dtype, d=64, e=64):
        return (
            torch.randn(4, 40, d, dtype=dtype),
            torch.randn(2, 40, d, dtype=dtype),
            torch.randn(2, 40, e, dtype=dtype),
        )

    return make


@pytest.fixture
def causal():
    rows = torch.arange(40)
    return torch.stack([torch.zeros(40, dtype=torch.int64), rows + 1], 1)[:, None]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("score", [Score(), Score(cap=30.0, bias=torch.zeros(40))])
def test_attention_and_its_gradient(built, heads, causal, dtype, score):
    from foveate.kernels import attention_backward_triton, attention_triton

    q, k, v = heads(dtype)
    out, sums = attention_triton.attend(q, k, v, causal, score, Softmax(zero=True))
    attention_backward_triton.gradients(q, k, v, causal, score, sums, out, sums)
    assert built == {"_forward": 1, "_to_queries": 1, "_to_keys": 1}


@pytest.mark.parametrize("dtype", FLOATS)
def test_topk_attention(built, heads, causal, dtype):
    from foveate.kernels import topk_attention_triton

    topk_attention_triton.attend(*heads(dtype), causal, Score(), Softmax(top=8))
    assert built == {"_forward": 1}


@pytest.mark.parametrize("dtype", FLOATS)
def test_moba(built, heads, dtype):
    from foveate.kernels import moba_triton

    moba_triton.attend(*heads(dtype), torch.ones(4, 40, 3, dtype=torch.bool), 16)
    assert built == {"_forward": 1}


@pytest.mark.parametrize("dtype", FLOATS)
def test_quantised_score(built, heads, dtype):
    from foveate.kernels import quantised_score_triton

    q, k, v = heads(dtype)
    codes = [(x.float().round(), torch.ones(*x.shape[:2], 1)) for x in (q, k)]
    quantised_score_triton.attend(q, k, v, *codes, tau=0.01, block=16, sink=16, local=16)
    assert built == {"_forward": 1}


@pytest.mark.parametrize("dtype", FLOATS)
def test_team_attention(built, dtype):
    from foveate.kernels import team_attention_triton

    q, k, v = (torch.randn(n, 64, dtype=dtype) for n in (8, 40, 40))
    chosen = torch.zeros(8, 12, dtype=torch.int64)
    team_attention_triton.attend(q, k, v, chosen, torch.zeros(8, 12), 64**-0.5)
    assert built == {"_forward": 1}


def test_sign_index(built):
    from foveate.kernels import sign_index_triton

    codes = torch.zeros(2, 8, 40, dtype=torch.uint8)
    sign_index_triton.estimate(torch.randn(2, 8, 256, 4), codes)
    assert built == {"_estimate": 1}


def test_sinkhorn(built):
    from foveate.kernels import sinkhorn_triton

    limits = {"blur": 0.05, "tolerance": 1e-4, "max_steps": 500}
    sinkhorn_triton.plan(torch.rand(3, 12, 30), torch.zeros(3, 12), torch.zeros(3, 30), **limits)
    assert built == {"_plan": 1}


@pytest.mark.parametrize("dtype", FLOATS)
def test_infonce_and_its_gradient(built, dtype):
    from foveate.kernels import infonce_triton

    q, d = torch.randn(40, 64, dtype=dtype), torch.randn(50, 64, dtype=dtype)
    sums = infonce_triton.sums_of(q, d, 0.05)
    infonce_triton.weighted(q, d, sums, 0.05)
    assert built == {"_forward": 1, "_backward": 2}


@pytest.mark.parametrize("dtype", FLOATS)
def test_maxsim_of_vectors_its_matches_and_gradient(built, dtype):
    from foveate.kernels import maxsim_triton

    documents = Documents(torch.randn(60, 128, dtype=dtype), torch.tensor([0, 20, 20, 60]))
    queries = torch.randn(32, 128, dtype=dtype)
    maxsim_triton.score(queries, documents, torch.tensor([0, 32]))
    _, where = maxsim_triton.match(queries, documents)
    maxsim_triton.gradients(queries, documents.tokens, where, torch.zeros(where.shape))
    assert built == {"_forward": 2, "_to_queries": 1, "_to_tokens": 1}


@pytest.mark.parametrize("kind", ["int8", "onebit"])
def test_maxsim_of_codes(built, kind):
    from foveate.kernels import maxsim_triton

    dtype, width = (torch.int8, 128) if kind == "int8" else (torch.uint8, 16)
    tokens = torch.zeros(60, width, dtype=dtype)
    documents = Documents(tokens, torch.tensor([0, 20, 20, 60]), torch.ones(60))
    maxsim_triton.score(torch.randn(32, 128), documents, torch.tensor([0, 32]))
    assert built == {"_forward": 1}


def test_what_is_refused_is_refused_here_too(built):
    # that a launch is compiled at all: a kernel that cannot be is not passed over
    from triton import language as tl

    @triton.jit
    def wrong(out, N: tl.constexpr):
        tl.store(out + tl.arange(0, N), tl.zeros((2 * N,), tl.float32))

    with pytest.raises(Exception, match=r"(?i)shape|broadcast|at \d+:"):
        wrong[(1,)](torch.empty(16), N=16)
    assert not built
