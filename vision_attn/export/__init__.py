"""Export models as files for programs without vision_attn: ONNX and torch.export."""
