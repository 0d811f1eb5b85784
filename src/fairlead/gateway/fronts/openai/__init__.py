"""OpenAI's protocol below `/v1` (docs/openai.md, docs/adr/0026-openai-front.md)."""
