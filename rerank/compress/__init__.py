REGISTRY: dict[str, str] = {
    "extractive": "foveate.rerank.compress.extractive:Extractive",
}
