REGISTRY: dict[str, str] = {
    "minilm": "foveate.encoders.minilm:MiniLM",
}
