"""Loaders: each reads one kind of file and yields Documents. Add one by one line here."""

REGISTRY: dict[str, str] = {
    "code": "foveate.pipeline.ingest.code:load",
    "csv": "foveate.pipeline.ingest.table:load",
    "docx": "foveate.pipeline.ingest.docx:load",
    "epub": "foveate.pipeline.ingest.epub:load",
    "html": "foveate.pipeline.ingest.html:load",
    "image": "foveate.pipeline.ingest.image:load",
    "json": "foveate.pipeline.ingest.jsonl:load_json",
    "jsonl": "foveate.pipeline.ingest.jsonl:load",
    "markdown": "foveate.pipeline.ingest.markdown:load",
    "odt": "foveate.pipeline.ingest.odt:load",
    "pdf": "foveate.pipeline.ingest.pdf:load",
    "pptx": "foveate.pipeline.ingest.pptx:load",
    "rtf": "foveate.pipeline.ingest.rtf:load",
    "text": "foveate.pipeline.ingest.text:load",
    "xlsx": "foveate.pipeline.ingest.xlsx:load",
    "xml": "foveate.pipeline.ingest.xml:load",
}
