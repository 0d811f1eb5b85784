"""Replicate's protocol below `/replicate/v1` (docs/replicate.md, docs/adr/0039-replicate-front.md)."""
