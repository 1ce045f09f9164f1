"""Open models of other libraries: torchvision, timm, transformers, and functions that make one."""
