REGISTRY: dict[str, str] = {
    "late": "foveate.rerank.late:Late",
    "regions": "foveate.rerank.regions:Conditioned",
}
