"""A Hugging Face checkpoint directory: config.json, *.safetensors, tokenizer files."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strata.config import read_hf_config
from strata.plan.shape import needed
from strata.quant.base import QuantizedTensor, Tensor
from strata.store.files import is_file, load_tokenizer, read_json, read_json_if_there, write_json
from strata.store.sources import names
from strata.store.sources.base import WHOLE, SourceTensor
from strata.store.sources.safetensors_files import SafetensorsFiles
from strata.store.sources.schemes import stored_weights

_QUANTIZATION = ("quantization_config", "compression_config")  # the second is compressed-tensors' older name


class SafetensorsSource:
    """Implements ``strata.store.sources.base.Source``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.origin = str(path)
        table = read_json(path / "config.json")
        origin = str(path / "config.json")
        self.model = read_hf_config(table, origin=origin)
        self._files = SafetensorsFiles(path)
        quantization = next((table[key] for key in _QUANTIZATION if table.get(key)), None)
        self._weights = stored_weights(self._files, quantization, origin=origin)
        shapes = {name: weight.shape for name, weight in self._weights.items()}
        places = names.huggingface(self.model, shapes, origin=self.origin)
        if quantization:
            wanted = {spec.name for spec in needed(self.model)}
            places = {name: place for name, place in places.items() if name in wanted or not self._is_zero_bias(place)}
        self._places = places
        self.tensors = {
            name: SourceTensor(place.shape(self._weights[place.name].shape), self._weights[place.name].dtype)
            for name, place in places.items()
        }
        # The store's weights are no longer quantised that way.
        self.config: Mapping[str, Any] = {key: value for key, value in table.items() if key not in _QUANTIZATION}

    def read(self, name: str, rows: slice = WHOLE) -> Tensor | QuantizedTensor:
        """See ``Source.read``."""
        place = self._places[name]
        return place.read(self._weights[place.name].read, rows)

    def write_tokenizer(self, directory: Path) -> None:
        """See ``Source.write_tokenizer``."""
        load_tokenizer(self._path / "tokenizer.json")
        generation_config = read_json_if_there(self._path / "generation_config.json")
        shutil.copyfile(self._path / "tokenizer.json", directory / "tokenizer.json")
        config = read_json_if_there(self._path / "tokenizer_config.json")
        template = self._path / "chat_template.jinja"  # newer checkpoints keep it in a file of its own
        if is_file(template):
            config["chat_template"] = template.read_text(encoding="utf-8")
        elif isinstance(config.get("chat_template"), list):  # several by name; "default" is for chat
            entries = [entry for entry in config["chat_template"] if isinstance(entry, dict)]
            templates = {str(entry.get("name")): entry.get("template") for entry in entries}
            config["chat_template"] = templates.get("default")
            config["tool_chat_template"] = templates.get("tool_use")
        config.setdefault("chat_template", None)
        for key, value in config.items():
            if key.endswith("_token") and isinstance(value, dict):  # its stripping rules are in tokenizer.json
                config[key] = value.get("content")
        write_json(directory / "tokenizer_config.json", config)
        if generation_config:
            write_json(directory / "generation_config.json", generation_config)

    def _is_zero_bias(self, place: names.Place) -> bool:
        """AutoGPTQ gives every module a bias, of zeros where the model has none."""
        return place.name.endswith(".bias") and not self._files.read(place.name).any()
