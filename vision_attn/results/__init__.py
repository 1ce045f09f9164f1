"""The models and results that the API, the commands and the web page share."""
