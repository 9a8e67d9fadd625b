"""Loaders: each reads one kind of file and yields Documents. Add one by one line here."""

REGISTRY: dict[str, str] = {
    "image": "foveate.pipeline.ingest.image:load",
    "pdf": "foveate.pipeline.ingest.pdf:load",
}
