"""Ways of decoding that keep a local model nearer to its passages, by name."""

REGISTRY: dict[str, str] = {}
