"""Source code by the names of its files."""

from __future__ import annotations

_EXTENSIONS = {
    "python": "py pyi pyw",
    "javascript": "js mjs cjs jsx",
    "typescript": "ts tsx mts",
    "c": "c h",
    "cpp": "cc cpp cxx hpp hh hxx ino",
    "cuda": "cu cuh",
    "csharp": "cs",
    "java": "java",
    "kotlin": "kt kts",
    "scala": "scala",
    "go": "go",
    "rust": "rs",
    "ruby": "rb",
    "php": "php",
    "perl": "pl pm",
    "lua": "lua",
    "r": "r",
    "julia": "jl",
    "swift": "swift",
    "objectivec": "m mm",
    "haskell": "hs",
    "ocaml": "ml mli",
    "fsharp": "fs fsx",
    "erlang": "erl",
    "elixir": "ex exs",
    "clojure": "clj cljs",
    "lisp": "lisp el scm",
    "dart": "dart",
    "zig": "zig",
    "fortran": "f f90 f95",
    "pascal": "pas",
    "assembly": "asm s",
    "shell": "sh bash zsh fish",
    "powershell": "ps1",
    "batch": "bat cmd",
    "sql": "sql",
    "css": "css scss less",
    "vue": "vue",
    "protobuf": "proto",
    "graphql": "graphql",
    "yaml": "yaml yml",
    "toml": "toml",
    "ini": "ini cfg conf properties env",
    "cmake": "cmake",
    "terraform": "tf",
    "nix": "nix",
    "diff": "diff patch",
    "verilog": "v sv",
    "vhdl": "vhd vhdl",
}
_BY_EXTENSION = {f".{e}": name for name, ends in _EXTENSIONS.items() for e in ends.split()}
_BY_NAME = {
    "makefile": "make",
    "dockerfile": "docker",
    "cmakelists.txt": "cmake",
    "gemfile": "ruby",
    "rakefile": "ruby",
    "vagrantfile": "ruby",
    "jenkinsfile": "groovy",
    ".bashrc": "shell",
    ".zshrc": "shell",
    ".gitconfig": "ini",
}


def language_of(name: str, extension: str) -> str | None:
    """Return the programming language of a file name, or None."""
    return _BY_NAME.get(name.lower()) or _BY_EXTENSION.get(extension)
