"""Operations on vectors and attention: each has a reference, a CPU path and perhaps a Triton path.

Nothing is imported here. `foveate.kernels.dispatch.paths()` says which path each operation takes.
"""

REGISTRY = {
    "attention": "foveate.kernels.attention:attention",
    "block_attention": "foveate.kernels.block_attention:block_attention",
    "maxsim": "foveate.kernels.maxsim:maxsim",
    "pooled_attention": "foveate.kernels.pooled_attention:pooled_attention",
    "topk_attention": "foveate.kernels.topk_attention:topk_attention",
    "window_attention": "foveate.kernels.window_attention:window_attention",
}
