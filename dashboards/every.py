"""All dashboards."""

from dashboards.fleet import FLEET
from dashboards.model import MODELS
from dashboards.node import NODES
from dashboards.operator import OPERATOR

EVERY = (FLEET, MODELS, NODES, OPERATOR)
