"""Models and results (captions, classes, answers) for the API, the commands and the web page."""
