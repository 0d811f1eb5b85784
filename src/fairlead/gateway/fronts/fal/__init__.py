"""fal's protocol below `/fal` (docs/fal.md, docs/adr/0034-fal-front.md)."""
