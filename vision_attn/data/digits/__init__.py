"""MNIST: digits by themselves, translated, cluttered, in pairs."""
