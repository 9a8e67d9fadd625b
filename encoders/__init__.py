REGISTRY: dict[str, str] = {
    "array": "foveate.encoders.arrays:ArrayEncoder",
    "efficientnet-lite": "foveate.encoders.efficientnet:EfficientNetLite",
    "late-minilm": "foveate.encoders.late:LateMiniLM",
    "minilm": "foveate.encoders.minilm:MiniLM",
    "multi-vector": "foveate.encoders.multi_vector:MultiVector",
    "open-clip": "foveate.encoders.clip:OpenCLIP",
    "patches": "foveate.encoders.patches:Patches",
    "reader": "foveate.encoders.prompted:Prompted",
    "sentence-transformers": "foveate.encoders.sentence_transformer:SentenceTransformer",
}
