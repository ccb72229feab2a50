"""Frozen settings, grouped by what they describe: the model (from its checkpoint) and the engine (from the user)."""

from strata.config.engine import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig
from strata.config.hf import ARCHITECTURES, read_hf_config, token_ids
from strata.config.model import (
    ExpertsConfig,
    HyperConnectionsConfig,
    IndexerConfig,
    LinearAttentionConfig,
    ModelConfig,
)
from strata.config.rope import DynamicScaling, LinearScaling, Llama3Scaling, RopeConfig, YarnScaling

__all__ = [
    "ARCHITECTURES",
    "CacheConfig",
    "DeviceConfig",
    "DynamicScaling",
    "EngineConfig",
    "ExpertsConfig",
    "HyperConnectionsConfig",
    "IndexerConfig",
    "LinearAttentionConfig",
    "LinearScaling",
    "Llama3Scaling",
    "ModelConfig",
    "RopeConfig",
    "SchedulerConfig",
    "YarnScaling",
    "read_hf_config",
    "token_ids",
]
