REGISTRY: dict[str, str] = {
    "ranked": "foveate.rerank.order.places:Ranked",
    "reversed": "foveate.rerank.order.places:Reversed",
    "sides": "foveate.rerank.order.places:Sides",
    "attention": "foveate.rerank.order.attention:AttentionSorting",
    "middle": "foveate.rerank.order.attention:FoundInTheMiddle",
    "attnrank": "foveate.rerank.order.profile:AttnRank",
}
