REGISTRY: dict[str, str] = {
    "ranked": "foveate.rerank.order.places:Ranked",
    "reversed": "foveate.rerank.order.places:Reversed",
    "sides": "foveate.rerank.order.places:Sides",
}
