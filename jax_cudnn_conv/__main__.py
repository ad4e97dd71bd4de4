"""``python -m jax_cudnn_conv`` prints the configuration."""

from jax_cudnn_conv import show_config

show_config()
