"""A model that sentence-transformers runs, by folder or hub name, read when it is first used."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

from foveate.pipeline.errors import ModelError


class LibraryModel:
    """One of the library's classes, with what both of our encoders ask of it.

    kind: the class's name. model: a folder or a hub name. ready: is done to the model once.
    options: more of its arguments.
    """

    def __init__(
        self,
        kind: str,
        model: str | os.PathLike[str],
        *,
        name: str | None,
        revision: str | None,
        device: str,
        dtype: str,
        local_files_only: bool,
        threads: int | None,
        ready: Callable[[Any], None] = lambda model: None,
        **options: Any,
    ) -> None:
        self.place = os.path.expanduser(os.fspath(model))
        self.name = name or os.path.basename(self.place.rstrip("/" + os.sep)) or self.place
        # the library's tokenizers are not safe to use from two threads at once
        self.lock = threading.RLock()
        self._kind, self._revision, self._device, self._dtype = kind, revision, device, dtype
        self._local, self._threads, self._ready = local_files_only, threads, ready
        self._options = options

    @cached_property
    def model(self) -> Any:
        """The model, ready to use.

        Raises:
            ModelError: if it cannot be loaded.
        """
        with self.lock:
            if "model" not in self.__dict__:
                self.__dict__["model"] = self._load()
            return self.__dict__["model"]

    def _load(self) -> Any:
        import sentence_transformers

        from foveate.encoders.devices import choose_device, choose_dtype
        from foveate.encoders.threads import set_threads

        set_threads(self._threads)
        device = choose_device(self._device)
        try:
            model = getattr(sentence_transformers, self._kind)(
                self.place,
                device=str(device),
                revision=self._revision,
                trust_remote_code=False,
                local_files_only=self._local or _offline(),
                model_kwargs={"dtype": choose_dtype(self._dtype, device)},
                **self._options,
            )
        except Exception as error:  # network, hub, file and format errors of four libraries
            raise ModelError(f"cannot load the model {self.place!r}: {_reason(error)}") from error
        self._ready(model)
        return model.eval()


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def _reason(error: Exception) -> str:
    """Return the first line of what a library said, and what to do."""
    first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return (
        f"{first[:200]}; give the path of a model folder, or fetch it once where the hub can be "
        "reached (HF_HUB_OFFLINE unset) and copy it here"
    )
