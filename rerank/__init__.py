REGISTRY: dict[str, str] = {
    "late": "foveate.rerank.late:Late",
}
