"""The vision benchmark: residual networks on images, data parallel."""
