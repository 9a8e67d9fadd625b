REGISTRY: dict[str, str] = {
    "attention": "foveate.rerank.in_context:InContext",
    "cross-encoder": "foveate.rerank.cross:CrossEncoder",
    "fusion": "foveate.rerank.fusion:Fusion",
    "late": "foveate.rerank.late:Late",
    "listwise": "foveate.rerank.listwise:Listwise",
    "pointwise": "foveate.rerank.listwise:Pointwise",
    "regions": "foveate.rerank.regions:Conditioned",
    "transport": "foveate.rerank.transport:Transport",
    "windows": "foveate.rerank.windows:Windows",
}
