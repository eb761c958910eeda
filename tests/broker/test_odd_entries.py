"""Odd entries between good ones stop nobody: not a reader, not a shadow, and no command that looks at a topic."""

from __future__ import annotations
