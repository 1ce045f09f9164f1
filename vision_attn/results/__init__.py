"""Models and results (captions, classes, answers) that the API, the commands and the web page share."""
