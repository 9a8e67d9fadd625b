REGISTRY: dict[str, str] = {
    "extractive": "foveate.rerank.compress.extractive:Extractive",
    "attention": "foveate.rerank.compress.attended:Attended",
    "cafe": "foveate.rerank.compress.cafe:Cafe",
    "infini": "foveate.rerank.compress.infini:InfiniRetri",
}
