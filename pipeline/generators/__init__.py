"""Generators by name. Nothing is imported until one is asked for."""

REGISTRY = {
    "extractive": "foveate.pipeline.generators.extractive:Extractive",
    "llamacpp": "foveate.pipeline.generators.llamacpp:LlamaCpp",
    "openai": "foveate.pipeline.generators.openai:OpenAICompatible",
    "transformers": "foveate.pipeline.generators.transformers:Transformers",
}
