REGISTRY: dict[str, str] = {
    "clauses": "foveate.rerank.compress.clausal:Clausal",
    "extractive": "foveate.rerank.compress.extractive:Extractive",
    "attention": "foveate.rerank.compress.attended:Attended",
    "sentinel": "foveate.rerank.compress.sentinel:Sentinel",
    "cafe": "foveate.rerank.compress.cafe:Cafe",
    "infini": "foveate.rerank.compress.infini:InfiniRetri",
}
