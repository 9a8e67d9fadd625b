REGISTRY: dict[str, str] = {}
