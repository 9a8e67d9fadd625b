REGISTRY: dict[str, str] = {"disk": "foveate.index.disk:DiskIndex"}
