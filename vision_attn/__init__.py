"""Image captioning and recurrent visual attention: models that look, trained, measured and shown."""

__version__ = "0.1.0"
