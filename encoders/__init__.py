REGISTRY: dict[str, str] = {
    "efficientnet-lite": "foveate.encoders.efficientnet:EfficientNetLite",
    "minilm": "foveate.encoders.minilm:MiniLM",
    "open-clip": "foveate.encoders.clip:OpenCLIP",
    "sentence-transformers": "foveate.encoders.sentence_transformer:SentenceTransformer",
}
