"""Weights as the libraries that quantise them store them, written from their formats' descriptions, word by word."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """Integer codes [outputs, inputs] with a zero and a scale for each output and group of inputs."""

    codes: Codes
    zeros: Codes
    scales: NDArray[np.float32]
    group_of: Codes  # of each input

    def numbers(self) -> torch.Tensor:
        """(code - zero) * scale, float32 [outputs, inputs]."""
        centred = self.codes - self.zeros[:, self.group_of]
        return torch.from_numpy((centred * self.scales[:, self.group_of]).astype(np.float32))


def rounded(
    weight: torch.Tensor, *, bits: int = 4, group: int = 32, symmetric: bool = False, order: Codes | None = None
) -> Groups:
    """``weight`` [outputs, inputs] rounded to unsigned codes. order: the inputs in the order in which groups take them,
    as GPTQ's act-order permutes them."""
    w = weight.double().numpy()
    outputs, inputs = w.shape
    order = np.arange(inputs) if order is None else order
    group_of = np.empty(inputs, np.int64)
    group_of[order] = np.arange(inputs) // group
    count = -(-inputs // group)
    zeros, scales = np.empty((outputs, count), np.int64), np.empty((outputs, count), np.float32)
    top = 2**bits - 1
    for g in range(count):
        part = w[:, group_of == g]
        if symmetric:
            scale = np.abs(part).max(1) / (top // 2)
            zero = np.full(outputs, 2 ** (bits - 1))
        else:
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scale = (high - low) / top
            zero = np.rint(-low / scale)
        scales[:, g] = torch.from_numpy(scale).bfloat16().float()  # which float16 holds, too
        zeros[:, g] = zero
    codes = np.clip(np.rint(w / scales[:, group_of]) + zeros[:, group_of], 0, top).astype(np.int64)
    return Groups(codes, zeros, scales, group_of)


def words(codes: Codes, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """[rows, cols] -> int32 [rows, ceil(cols * bits/32)], the lowest bits of a word first; order: of a word's codes."""
    per_word = 32 // bits
    rows, cols = codes.shape
    out = np.zeros((rows, -(-cols // per_word)), np.uint32)
    for col in range(cols):
        place = col % per_word if order is None else order.index(col % per_word)
        out[:, col // per_word] |= (codes[:, col].astype(np.uint32) & np.uint32(2**bits - 1)) << np.uint32(bits * place)
    return torch.from_numpy(out.view(np.int32))


def awq(module: str, groups: Groups) -> dict[str, torch.Tensor]:
    """AutoAWQ's WQLinear_GEMM."""
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {
        f"{module}.qweight": words(groups.codes.T, 4, order),
        f"{module}.qzeros": words(groups.zeros.T, 4, order),
        f"{module}.scales": torch.from_numpy(groups.scales.T).half(),
    }


def gptq(module: str, groups: Groups, *, bits: int = 4, version: int = 1) -> dict[str, torch.Tensor]:
    """AutoGPTQ's QuantLinear; version 2 keeps zeros as they are."""
    return {
        f"{module}.qweight": words(groups.codes, bits).T.contiguous(),
        f"{module}.qzeros": words(groups.zeros.T - (1 if version == 1 else 0), bits),
        f"{module}.scales": torch.from_numpy(groups.scales.T).half(),
        f"{module}.g_idx": torch.from_numpy(groups.group_of).int(),
    }


def packed(
    module: str, groups: Groups, *, bits: int = 4, symmetric: bool, order: bool = False
) -> dict[str, torch.Tensor]:
    """compressed-tensors' pack-quantized: signed codes and zeros, each raised by half of their range before packing."""
    half = 2 ** (bits - 1)
    signed, signed_zeros = groups.codes - half, groups.zeros - half
    tensors = {
        f"{module}.weight_packed": words(signed + half, bits),
        f"{module}.weight_scale": torch.from_numpy(groups.scales).bfloat16(),
        f"{module}.weight_shape": torch.tensor(groups.codes.shape),
    }
    if not symmetric:
        tensors[f"{module}.weight_zero_point"] = words((signed_zeros + half).T, bits).T.contiguous()
    if order:
        tensors[f"{module}.weight_g_idx"] = torch.from_numpy(groups.group_of).int()
    return tensors


def integers(module: str, groups: Groups, *, symmetric: bool) -> dict[str, torch.Tensor]:
    """compressed-tensors' int-quantized, 8 bits."""
    tensors = {
        f"{module}.weight": torch.from_numpy(groups.codes - 128).to(torch.int8),
        f"{module}.weight_scale": torch.from_numpy(groups.scales).bfloat16(),
    }
    if not symmetric:
        tensors[f"{module}.weight_zero_point"] = torch.from_numpy(groups.zeros - 128).to(torch.int8)
    return tensors


def mxfp4(codes: Codes, scales: Codes) -> dict[str, torch.Tensor]:
    """gpt-oss' blocks and scales: codes [..., rows, cols], scales [..., rows, cols/32]."""
    pairs = codes.reshape(*codes.shape[:-1], codes.shape[-1] // 32, 16, 2)
    blocks = pairs[..., 0] + 16 * pairs[..., 1]
    return {"blocks": torch.from_numpy(blocks.astype(np.uint8)), "scales": torch.from_numpy(scales.astype(np.uint8))}


def q4_k(weight: torch.Tensor) -> tuple[NDArray[np.uint8], torch.Tensor]:
    """GGUF's Q4_K: superblocks of 8 groups of 32, whose 6-bit scales and minima are multiples of two float16 numbers.
    Returns the blocks, uint8 [rows, cols/256 * 144], and the codes [rows, cols]."""
    w = weight.double().numpy()
    rows = len(w)
    groups = w.reshape(rows, -1, 8, 32)
    low = np.minimum(groups.min(-1), 0)
    step = (groups.max(-1) - low) / 15
    d = (step.max(-1, keepdims=True) / 63).astype(np.float16)
    dmin = (-low.min(-1, keepdims=True) / 63).astype(np.float16)
    scales = np.clip(np.rint(step / d), 1, 63).astype(np.uint8)
    mins = np.clip(np.rint(-low / dmin), 0, 63).astype(np.uint8)
    shifted = groups + (dmin.astype(np.float64) * mins)[..., None]
    codes = np.clip(np.rint(shifted / (d.astype(np.float64) * scales)[..., None]), 0, 15).astype(np.uint8)
    # Of the last four groups, the upper two bits lie above those of the first four, the lower four share bytes.
    first = scales[..., :4] | (scales[..., 4:] >> 4) << 6
    second = mins[..., :4] | (mins[..., 4:] >> 4) << 6
    third = (scales[..., 4:] & 15) | (mins[..., 4:] & 15) << 4
    pairs = codes.reshape(rows, -1, 4, 2, 32)
    nibbles = (pairs[..., 0, :] | pairs[..., 1, :] << 4).reshape(rows, -1, 128)
    blocks = np.concatenate([d.view(np.uint8), dmin.view(np.uint8), first, second, third, nibbles], axis=-1)
    return blocks.reshape(rows, -1), torch.from_numpy(codes.reshape(w.shape))
