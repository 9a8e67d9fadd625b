"""A GGUF file run by llama-cpp-python, where that is installed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from foveate.pipeline.completion import Stream, Usage, until
from foveate.pipeline.errors import ConfigError, MissingExtra, ModelError


class LlamaCpp:
    """Stream the greedy answer of llama.cpp, inside this process.

    Args:
        path: a .gguf file; '' takes the built-in reader's. window_tokens: of the context that is
            made. threads: 0 lets the library choose. gpu_layers: layers on the GPU, -1 for all.
    """

    def __init__(
        self,
        *,
        path: str | os.PathLike[str] = "",
        window_tokens: int = 4096,
        threads: int = 0,
        gpu_layers: int = 0,
    ) -> None:
        if window_tokens < 256:
            raise ConfigError(
                f"generator 'llamacpp': window_tokens must be >= 256, got {window_tokens!r}"
            )
        self.window_tokens = window_tokens
        self.reads = frozenset({"text"})
        self._path = Path(path).expanduser() if path else None
        self.name = f"llamacpp:{self._path.name if self._path else 'smollm2-135m-instruct'}"
        self._options = {"n_gpu_layers": gpu_layers, "n_threads": threads or None}
        self._model: Any = None
        self._lock = threading.RLock()

    @property
    def model(self) -> Any:
        """The loaded model.

        Raises:
            MissingExtra: if llama-cpp-python is not installed.
            ModelError: if the file is not there or cannot be read.
        """
        with self._lock:
            if self._model is None:
                try:
                    import llama_cpp  # type: ignore[import-not-found,unused-ignore]
                except ImportError as error:
                    raise MissingExtra(
                        "generator 'llamacpp'",
                        "llama-cpp-python",
                        "pip install llama-cpp-python, or use generator 'transformers', which "
                        "reads the same GGUF files",
                    ) from error
                from foveate.pipeline.reader import find_default

                path = self._path or find_default()
                if not path.is_file():
                    raise ModelError(f"model path {str(path)!r} is not a file")
                try:
                    self._model = llama_cpp.Llama(
                        model_path=str(path),
                        n_ctx=self.window_tokens,
                        verbose=False,
                        **self._options,
                    )
                except (ValueError, RuntimeError, OSError) as error:
                    raise ModelError(f"llama.cpp cannot load {str(path)!r}: {error}") from error
            return self._model

    def count_tokens(self, text: str) -> int:
        with self._lock:
            ids = self.model.tokenize(text.encode("utf-8", "replace"), add_bos=False, special=False)
        return len(ids)

    def generate(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
        timeout_s: float = 120.0,
    ) -> Stream:
        """Yield the answer piece by piece; closing the iterator stops the work."""
        stream = Stream(())
        return stream.follow(
            until(self._pieces(messages, max_tokens, list(stop), timeout_s, stream), stop)
        )

    def _pieces(
        self,
        messages: Sequence[Mapping[str, Any]],
        max_tokens: int,
        stop: list[str],
        timeout_s: float,
        stream: Stream,
    ) -> Iterator[str]:
        model = self.model  # loading is not the answer's time
        deadline = time.monotonic() + timeout_s
        # the library's context holds one conversation at a time
        with self._lock:
            made = model.create_chat_completion(
                messages=[{"role": m["role"], "content": m["content"]} for m in messages],
                max_tokens=max_tokens,
                temperature=0.0,
                stop=stop,
                stream=True,
            )
            n_pieces = 0
            for message in made:
                text = (message["choices"][0].get("delta") or {}).get("content")
                if text:
                    n_pieces += 1
                    yield text
                if time.monotonic() >= deadline:
                    break
            n_prompt = sum(self.count_tokens(m["content"]) for m in messages)
            stream.usage = Usage(n_prompt, n_pieces)
