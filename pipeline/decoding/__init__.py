"""Ways of decoding that keep a local model nearer to its passages, by name."""

REGISTRY = {
    "cad": "foveate.pipeline.decoding.cad:ContextAware",
    "cd": "foveate.pipeline.decoding.cd:ExpertMinusAmateur",
    "contrastive-search": "foveate.pipeline.decoding.search:ContrastiveSearch",
    "focus": "foveate.pipeline.decoding.focus:FocusDirections",
    "greedy": "foveate.pipeline.decoding.greedy:Greedy",
    "layers": "foveate.pipeline.decoding.layers:LayerContrast",
    "prism": "foveate.pipeline.decoding.prism:Highlight",
}
