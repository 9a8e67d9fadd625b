"""Loaders: each reads one kind of file and yields Documents. Add one by one line here."""

REGISTRY: dict[str, str] = {
    "code": "foveate.pipeline.ingest.code:load",
    "csv": "foveate.pipeline.ingest.table:load",
    "html": "foveate.pipeline.ingest.html:load",
    "image": "foveate.pipeline.ingest.image:load",
    "json": "foveate.pipeline.ingest.jsonl:load_json",
    "jsonl": "foveate.pipeline.ingest.jsonl:load",
    "markdown": "foveate.pipeline.ingest.markdown:load",
    "pdf": "foveate.pipeline.ingest.pdf:load",
    "text": "foveate.pipeline.ingest.text:load",
}
