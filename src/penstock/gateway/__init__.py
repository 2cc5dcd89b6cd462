"""The HTTP API and the pages: programs in any language, and people with a browser."""
