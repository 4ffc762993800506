"""Rows for tests."""

from __future__ import annotations

import random


def texts(count: int) -> list[dict[str, str]]:
    draw = random.Random(count)
    words = "the a model learns what rows say and forgets noise in time".split()
    return [{"text": " ".join(draw.choices(words, k=draw.randint(3, 25)))} for _ in range(count)]
