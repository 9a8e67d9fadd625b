"""Generators by name. Nothing is imported until one is asked for."""

REGISTRY = {
    "extractive": "foveate.pipeline.generators.extractive:Extractive",
    "openai": "foveate.pipeline.generators.openai:OpenAICompatible",
    "transformers": "foveate.pipeline.generators.transformers:Transformers",
}
