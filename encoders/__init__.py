REGISTRY: dict[str, str] = {
    "efficientnet-lite": "foveate.encoders.efficientnet:EfficientNetLite",
    "late-minilm": "foveate.encoders.late:LateMiniLM",
    "minilm": "foveate.encoders.minilm:MiniLM",
    "open-clip": "foveate.encoders.clip:OpenCLIP",
    "sentence-transformers": "foveate.encoders.sentence_transformer:SentenceTransformer",
}
