"""Cost models of convolutional networks. Breakdowns name a formula here as `vision.function`."""

from __future__ import annotations

from scalewright.costs.vision.convolution import conv_product_time_s, conv_time_s, num_conv_elements, vector_gain
from scalewright.costs.vision.footprint import (
    activation_bytes_per_sample,
    reserved_bytes,
    search_workspace_bytes,
    step_memory,
)
from scalewright.costs.vision.interval import interval_s, unseen
from scalewright.costs.vision.roofline import operations
from scalewright.costs.vision.step import (
    exposed_exchange_s,
    gradient_bytes,
    host_time_s,
    num_images_per_s,
    step_time,
    validation_time_s,
)
from scalewright.costs.vision.supply import Supply, image_wait_s, slowest_supply, supplies
from scalewright.costs.vision.traffic import (
    cast_bytes,
    layout_bytes_per_sample,
    move_time_s,
    norm_bytes_per_sample,
    norm_time_s,
    own_norm_factor,
    pool_time_s,
)

__all__ = [
    "Supply",
    "activation_bytes_per_sample",
    "cast_bytes",
    "conv_product_time_s",
    "conv_time_s",
    "exposed_exchange_s",
    "gradient_bytes",
    "host_time_s",
    "image_wait_s",
    "interval_s",
    "layout_bytes_per_sample",
    "move_time_s",
    "norm_bytes_per_sample",
    "norm_time_s",
    "num_conv_elements",
    "num_images_per_s",
    "operations",
    "own_norm_factor",
    "pool_time_s",
    "reserved_bytes",
    "search_workspace_bytes",
    "slowest_supply",
    "step_memory",
    "step_time",
    "supplies",
    "unseen",
    "validation_time_s",
    "vector_gain",
]
