"""The *.safetensors files of a directory as one table of tensors: headers at once, data on demand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from strata.errors import CheckpointError
from strata.quant.base import Tensor
from strata.store.files import is_file, read_json
from strata.store.sources.base import INDEX, SINGLE, WHOLE, SourceTensor

# The library maps a file, and what was read of it stays in memory as long as the map: it is renewed after these bytes.
_MAPPED_BYTES = 64 << 20


class SafetensorsFiles:
    """Raises CheckpointError naming the file that is missing, truncated or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tensors: dict[str, SourceTensor] = {}
        self._paths: dict[str, Path] = {}  # name of a tensor: the file that holds it
        self._mapped: tuple[Path, Any] | None = None  # the file that was read last
        self._read_bytes = 0  # of it since it was mapped
        index: dict[str, str] = {}
        files = [SINGLE]
        if not is_file(path / SINGLE):
            index = self._index()
            files = sorted(set(index.values())) or [file.name for file in path.glob("*.safetensors")]
        for file in files:
            self._add(path / file)
        lost = sorted(set(index) - set(self.tensors))
        if lost:
            raise CheckpointError(f"{path / INDEX} lists tensors that its files do not hold: {', '.join(lost[:8])}")

    def read(self, name: str, expert: int | None = None, rows: slice = WHOLE) -> Tensor:
        """A tensor in its stored type; of one that is stacked along its first axis only the part of ``expert``; of
        that, only ``rows``."""
        from safetensors import SafetensorError

        path = self._paths[name]
        stacked = () if expert is None else (expert,)
        shape = self.tensors[name].shape[len(stacked) :]
        try:
            if self._mapped is None or self._mapped[0] != path or self._read_bytes > _MAPPED_BYTES:
                self._mapped, self._read_bytes = (path, _open(path)), 0
            file = self._mapped[1]
            if not shape:
                tensor = file.get_tensor(name) if expert is None else file.get_slice(name)[expert]
            else:
                first, last, step = rows.indices(shape[0])
                tensor = file.get_slice(name)[(*stacked, slice(first, last))]
                self._read_bytes += tensor.numel() * tensor.element_size()
                tensor = tensor if step == 1 else tensor[::step].contiguous()
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path} is truncated or damaged: tensor {name!r} cannot be read ({error}); fetch it again"
            ) from error
        return tensor

    def path_of(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self._paths[name]

    def expect(
        self, name: str, dtypes: tuple[str, ...], *shapes: tuple[int | None, ...], whose: str
    ) -> tuple[int, ...]:
        """The shape of a tensor that the weight ``whose`` is stored with.

        Raises CheckpointError naming the file and the tensor when it is missing, of none of ``dtypes``, empty, or of
        none of ``shapes``, where None stands for any length.
        """
        found = self.tensors.get(name)
        if found is None:
            raise CheckpointError(
                f"{self.path_of(whose)}: tensor {whose!r} needs {name!r} beside it, which no file of {self.path} "
                "holds; fetch the checkpoint again"
            )
        if found.dtype not in dtypes or not any(_matches(found.shape, shape) for shape in shapes):
            allowed = " or ".join(str(list(shape)).replace("None", "any") for shape in shapes)
            raise CheckpointError(
                f"{self.path_of(name)}: tensor {name!r} is {found.dtype} {list(found.shape)}; "
                f"{' or '.join(dtypes)} {allowed} is needed"
            )
        return found.shape

    def _index(self) -> dict[str, str]:
        """The file of each tensor; empty where one file that is named otherwise is all there is."""
        path = self.path / INDEX
        if not is_file(path):
            if len(list(self.path.glob("*.safetensors"))) == 1:  # AutoGPTQ's: gptq_model-4bit-128g.safetensors
                return {}
            raise CheckpointError(f"{self.path} has neither {SINGLE} nor {INDEX}; fetch the checkpoint again")
        table = read_json(path).get("weight_map")
        if not isinstance(table, dict) or not table or not all(_is_file_name(file) for file in table.values()):
            raise CheckpointError(
                f"{path}: 'weight_map' is not a table from tensor to *.safetensors file; fetch it again"
            )
        return table

    def _add(self, path: Path) -> None:
        file = _open(path)
        for name in file.keys():  # noqa: SIM118 - not a dict
            piece = file.get_slice(name)
            self.tensors[name] = SourceTensor(tuple(piece.get_shape()), piece.get_dtype())
            self._paths[name] = path


def _open(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    if not is_file(path):
        raise CheckpointError(f"{path} is missing; fetch the checkpoint again")
    try:
        return safe_open(str(path), framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is truncated or damaged ({error}); fetch it again") from error


def _is_file_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[\w.+-]{1,200}\.safetensors", value) is not None


def _matches(found: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    return len(found) == len(shape) and all(
        length > 0 and wanted in (None, length) for length, wanted in zip(found, shape, strict=True)
    )
