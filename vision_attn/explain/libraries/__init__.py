"""Models of other libraries, opened: torchvision, timm, transformers, and functions that make one."""
