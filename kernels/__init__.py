"""Operations on vectors and attention: each has a reference, a CPU path and perhaps a Triton path.

Nothing is imported here. `foveate.kernels.dispatch.paths()` says which path each operation takes.
"""

REGISTRY = {
    "maxsim": "foveate.kernels.maxsim:maxsim",
}
