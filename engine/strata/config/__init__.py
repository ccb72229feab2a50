"""Frozen settings, grouped by what they describe: the model (from its checkpoint) and the engine (from the user)."""

from strata.config.engine import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig
from strata.config.model import ModelConfig, RopeConfig, token_ids

__all__ = ["CacheConfig", "DeviceConfig", "EngineConfig", "ModelConfig", "RopeConfig", "SchedulerConfig", "token_ids"]
