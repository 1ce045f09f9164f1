"""What the API, the commands and the page share: inputs, and results that display themselves."""
