"""Operations on vectors and attention: each has a reference, a CPU path and perhaps a Triton path.

Nothing is imported here. `foveate.kernels.dispatch.paths()` says which path each operation takes.
"""

REGISTRY = {
    "attention": "foveate.kernels.attention:attention",
    "block_attention": "foveate.kernels.block_attention:block_attention",
    "infonce": "foveate.kernels.infonce:infonce",
    "maxsim": "foveate.kernels.maxsim:maxsim",
    "moba": "foveate.kernels.moba:moba",
    "pooled_attention": "foveate.kernels.pooled_attention:pooled_attention",
    "quantised_score": "foveate.kernels.quantised_score:quantised_score",
    "sign_index": "foveate.kernels.sign_index:sign_index",
    "sinkhorn": "foveate.kernels.sinkhorn:sinkhorn",
    "team_attention": "foveate.kernels.team_attention:team_attention",
    "topk_attention": "foveate.kernels.topk_attention:topk_attention",
    "window_attention": "foveate.kernels.window_attention:window_attention",
}
