"""The server: an index over HTTP, for people (the page), programs, chat clients and tools."""
