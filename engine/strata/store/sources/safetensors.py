"""A Hugging Face checkpoint directory: config.json, *.safetensors, tokenizer files."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strata.errors import CheckpointError, UnsupportedModelError
from strata.quant.base import Tensor
from strata.store.files import load_tokenizer, read_json, read_json_if_there, write_json
from strata.store.sources.base import WHOLE, SourceTensor

TYPES = ("BF16", "F16", "F32")
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
# The library maps a file, and what was read of it stays in memory as long as the map: it is renewed after these bytes.
_MAPPED_BYTES = 64 << 20


class SafetensorsSource:
    """Implements ``strata.store.sources.base.Source``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.origin = str(path)
        self.config: Mapping[str, Any] = read_json(path / "config.json")
        if self.config.get("quantization_config"):
            table = self.config["quantization_config"]
            method = table.get("quant_method") if isinstance(table, dict) else table
            raise UnsupportedModelError(
                f"{path / 'config.json'}: weights quantised with {method!r} are not supported; "
                f"give a checkpoint in {', '.join(TYPES)}, or a GGUF"
            )
        self._files: dict[str, Path] = {}  # name of a tensor: the file that holds it
        self._mapped: tuple[Path, Any] | None = None  # the file that was read last
        self._read_bytes = 0  # of it since it was mapped
        self.tensors: dict[str, SourceTensor] = {}
        index = {} if (path / _SINGLE).is_file() else self._index()
        for file in sorted(set(index.values())) or [_SINGLE]:
            self._add(path / file)
        lost = sorted(set(index) - set(self.tensors))
        if lost:
            raise CheckpointError(f"{path / _INDEX} lists tensors that its files do not hold: {', '.join(lost[:8])}")

    def read(self, name: str, rows: slice = WHOLE) -> Tensor:
        """See ``Source.read``."""
        path = self._files[name]
        if self._mapped is None or self._mapped[0] != path or self._read_bytes > _MAPPED_BYTES:
            self._mapped, self._read_bytes = (path, _open(path)), 0
        tensor = self._mapped[1].get_slice(name)[rows]
        self._read_bytes += tensor.numel() * tensor.element_size()
        return tensor

    def write_tokenizer(self, directory: Path) -> None:
        """See ``Source.write_tokenizer``."""
        load_tokenizer(self._path / "tokenizer.json")
        generation_config = read_json_if_there(self._path / "generation_config.json")
        shutil.copyfile(self._path / "tokenizer.json", directory / "tokenizer.json")
        config = read_json_if_there(self._path / "tokenizer_config.json")
        template = self._path / "chat_template.jinja"  # newer checkpoints keep it in a file of its own
        if template.is_file():
            config["chat_template"] = template.read_text(encoding="utf-8")
        elif isinstance(config.get("chat_template"), list):  # several by name; "default" is for chat
            named = {entry.get("name"): entry.get("template") for entry in config["chat_template"]}
            config["chat_template"] = named.get("default")
        config.setdefault("chat_template", None)
        for key, value in config.items():
            if key.endswith("_token") and isinstance(value, dict):  # its stripping rules are in tokenizer.json
                config[key] = value.get("content")
        write_json(directory / "tokenizer_config.json", config)
        if generation_config:
            write_json(directory / "generation_config.json", generation_config)

    def _index(self) -> dict[str, str]:
        path = self._path / _INDEX
        if not path.exists():
            raise CheckpointError(f"{self._path} has neither {_SINGLE} nor {_INDEX}; fetch the checkpoint again")
        table = read_json(path).get("weight_map")
        if not isinstance(table, dict) or not table or not all(isinstance(file, str) for file in table.values()):
            raise CheckpointError(f"{path}: 'weight_map' is not a table from tensor to file; fetch it again")
        return table

    def _add(self, path: Path) -> None:
        file = _open(path)
        for name in file.keys():  # noqa: SIM118 - not a dict
            piece = file.get_slice(name)
            tensor = self.tensors[name] = SourceTensor(tuple(piece.get_shape()), piece.get_dtype())
            self._files[name] = path
            if tensor.dtype not in TYPES:
                raise UnsupportedModelError(
                    f"{path}: tensor {name!r} has the type {tensor.dtype}; supported: {', '.join(TYPES)}"
                )


def _open(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise CheckpointError(f"{path} is missing; fetch the checkpoint again")
    try:
        return safe_open(str(path), framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is truncated or damaged ({error}); fetch it again") from error
