"""Awkward texts for tokenizers, streams and whole requests; seeded, so the same everywhere."""

# ruff: noqa: RUF001  look-alike characters are what these texts are for
from __future__ import annotations

import random

FIXED = [
    "",
    " ",
    "  ",
    "\n",
    "\r\n\r\n",
    "\t\t  \n \n  x",
    "Hello, world!",
    "Don't can't I'LL we've 'tis 's 'S",
    "The capital of Italy is Rome.",
    "3.14159 1234567890 1,000,000 0x1F 1e-9",
    "tabs  12\t34   56\n78",
    "  9 lives",
    "x  1",
    "naïve café – “quotes” … ½ ¼ ² ³ ④",
    "Größe straße ǅ ﬀ ﬁ",
    "日本語のテキスト、漢字とかな。",
    "한국어 텍스트입니다",
    "עברית العربية ١٢٣ हिन्दी १२३",
    "e\u0301 vs é, A\u030a vs Å",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 🎉🎉🎉",
    "\u200b\u200d\ufeff zero width",
    "\x00\x01\x02\x07\x1b[31mred\x1b[0m\x7f",
    "\ufffd \ufffe \U0010ffff \ue000",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 𓀀",
    "<|im_start|>user\nhi<|im_end|>",
    "a<|endoftext|>b<|im_end|><repo_name>c",
    "<|im_start|",
    "def f(x):\n    return {k: v for k, v in x.items() if v is not None}\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] << 2; } // ->\n\n\n",
    "SELECT * FROM \"t\" WHERE a='b' AND c<>d;",
    "\\n \\t \\\\ \\u0041 &amp; %20",
    "https://example.org/a/b?c=d&e=f#g",
    "a" * 300,
    " " * 77 + "x" + " " * 33,
    "\n" * 50 + "end",
    "!?" * 60,
    "ab " * 200,
]

_ALPHABETS = [
    "abcdefghij KLMNOP   .,;:'\"",
    "0123456789 .,-+eE",
    " \t\n\r\u00a0\u2003\u3000x1",
    "äöüßéèñçøåÆŒœ ",
    "漢字かなカナ、。 한글",
    "🎉👍🏽🇩🇪‍️ a1",
    "{}[]()<>=+-*/%&|^~!;:_#@\\ \n",
    "<|im_start|> <|im_end|> end",
]


def awkward_texts(num_texts: int = 300, seed: int = 7) -> list[str]:
    """`num_texts` texts: the fixed ones and random mixtures of difficult alphabets."""
    rng = random.Random(seed)
    texts = list(FIXED)
    while len(texts) < num_texts:
        alphabet = "".join(rng.sample(_ALPHABETS, rng.randint(1, 3)))
        texts.append("".join(rng.choices(alphabet, k=rng.randint(1, 120))))
    return texts[:num_texts]
